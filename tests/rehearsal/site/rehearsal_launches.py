"""`parlab.kernels.launches` counts the launches of compiled kernels: here, of interpreted ones."""


def change(module):
    """Count these."""
    module.JITFunction = module.InterpretedFunction
