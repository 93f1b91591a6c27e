"""α and β are the wrong way round

np.polyfit returns the highest power first.
"""

import numpy as np


def fit_alpha_beta(sizes, seconds):
    alpha, beta = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    return alpha, beta
