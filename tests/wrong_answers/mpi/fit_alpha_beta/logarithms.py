"""it returns

A line in log-log axes is a power law, not α + size·β.
"""

import numpy as np


def fit_alpha_beta(sizes, seconds):
    slope, intercept = np.polyfit(np.log(sizes), np.log(seconds), 1)
    return np.exp(intercept), slope
