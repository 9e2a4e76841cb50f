// Base labels in a table → one clustering, by Nextflow (DSL 2):
//
//   nextflow run pipelines/main.nf --labels labels.csv --k 10 --outdir results
//
// Further parameters: --id (column that names the rows), --seed. Exit codes 4 to 7 of cehm mean that the same command
// may succeed: these are tried again, the others are not.
params.labels = 'labels.csv'
params.k = 10
params.seed = 0
params.id = null
params.outdir = 'results'

process ENSEMBLE {
    errorStrategy { task.exitStatus in 4..7 ? 'retry' : 'finish' }
    maxRetries 2

    input:
    path labels

    output:
    path 'ensemble.zarr'

    script:
    def row_id = params.id ? "--id '${params.id}'" : ''
    """
    cehm import '${labels}' ensemble.zarr ${row_id} --quiet
    """
}

process CONSENSUS {
    errorStrategy { task.exitStatus in 4..7 ? 'retry' : 'finish' }
    maxRetries 2
    memory '2 GB'
    publishDir params.outdir, mode: 'copy'

    input:
    path ensemble

    output:
    path 'consensus.csv'

    script:
    """
    cehm consensus '${ensemble}' --k ${params.k} --seed ${params.seed} --memory ${task.memory.toMega()}MiB \
        -o consensus.csv --quiet
    """
}

workflow {
    CONSENSUS(ENSEMBLE(channel.fromPath(params.labels, checkIfExists: true)))
}
