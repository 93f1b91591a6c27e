"""both came late this time

α is read off the smallest message and β off the largest; all others are measured for nothing.
"""


def fit_alpha_beta(sizes, seconds):
    return seconds[0], seconds[-1] / sizes[-1]
