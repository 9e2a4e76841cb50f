"""A certificate authority and certificates for the nodes of a Dask cluster.

Beside the flow; used by ``cehm cluster certs`` only. Who holds a node's certificate and key may join the cluster,
and so run code on every machine of it; anyone else is refused. Files lie in a folder that only its owner may
enter, keys in files that only their owner may read.
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cehm_dask.errors import ExistsError, MissingExtraError

DAYS = 365
FILES = ("ca.pem", "ca-key.pem", "node.pem", "node-key.pem")


def make_certificates(folder: Path, hosts: Sequence[str] = (), days: int = DAYS) -> list[Path]:
    """Write a CA and a node certificate with their keys; refuses a folder that holds anything.

    Parameters
    ----------
    folder : Path
        Made if it is not there, with mode 0700.
    hosts : sequence of str
        Names and addresses of the nodes, beside localhost and 127.0.0.1.
    days : int
        How long the certificates are valid.

    Returns
    -------
    list of Path
        ca.pem, ca-key.pem, node.pem, node-key.pem.
    """
    try:
        from cryptography import x509
    except ImportError as error:
        raise MissingExtraError(
            "certificates need cryptography, not installed here: pip install 'cehm-dask[tls]'"
        ) from error
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExistsError(f"{folder} exists and is not empty: choose another name; certificates are not overwritten")

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def builder(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)  # for clocks that go wrong a little
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("cehm CA"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )

    def usage(*, signs_certificates: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not signs_certificates,
            key_cert_sign=signs_certificates,
            crl_sign=signs_certificates,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )

    def address(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    ca_key, node_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = (
        builder("cehm CA", ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    names = [address(host) for host in dict.fromkeys(["localhost", "127.0.0.1", *hosts])]
    node = (
        builder("cehm node", node_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        # Every node is a server to some and a client to others.
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(ca_key, hashes.SHA256())
    )

    def private(key: ec.EllipticCurvePrivateKey) -> bytes:
        plain = serialization.NoEncryption()
        return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)

    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    pem = serialization.Encoding.PEM
    contents = [ca.public_bytes(pem), private(ca_key), node.public_bytes(pem), private(node_key)]
    paths = [folder / file for file in FILES]
    for path, content in zip(paths, contents, strict=True):
        # Made with its mode, not changed to it: at no time can another read a key.
        mode = 0o600 if "key" in path.name else 0o644
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    return paths
