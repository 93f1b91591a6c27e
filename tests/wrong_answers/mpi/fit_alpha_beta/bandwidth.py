"""β is in bytes a second

Returns 1/β.
"""

import numpy as np


def fit_alpha_beta(sizes, seconds):
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    return alpha, 1 / beta
