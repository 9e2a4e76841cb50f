"""What is made of a finished consensus: scores, descriptions, exported labels, predictions for new rows.

May import the estimators and all below. Start at ``scoring``.
"""
