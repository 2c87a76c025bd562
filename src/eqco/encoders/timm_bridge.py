"""Any image network of timm as a backbone."""

import difflib

from torch import nn

from eqco.runtime.errors import InputError, MissingExtraError

__all__ = ["timm_encoder"]


def timm_encoder(name: str, *, in_channels: int = 3) -> nn.Module:
    """A network of timm with fresh weights and without classifier: images -> (N, feature_dim).

    Some of timm's networks accept one image size only, mostly 224.

    Args:
        name: as in `timm.list_models()`.
        in_channels: bands of the images; a few networks are made for three alone.

    Returns:
        timm's own module, with the size of its output as `feature_dim`.
    """
    try:
        import timm
    except ModuleNotFoundError as error:
        raise MissingExtraError("timm", "timm") from error
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"Nearest: {', '.join(near)}." if near else "timm.list_models() has all names."
        raise InputError(f"timm has no model named {name!r}. {hint}")
    model = timm.create_model(name, pretrained=False, num_classes=0, in_chans=in_channels)
    # head_hidden_size is what leaves the network; num_features, what enters its head
    model.feature_dim = model.head_hidden_size
    return model
