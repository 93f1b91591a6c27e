"""for times made with α

α is right, but a straight line through the first two points says nothing of β.
"""


def fit_alpha_beta(sizes, seconds):
    beta = (seconds[1] - seconds[0]) / (sizes[1] - sizes[0])
    return seconds[0], beta
