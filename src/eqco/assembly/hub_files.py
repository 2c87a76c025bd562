"""Folders as the Hugging Face Hub keeps them, on disk or fetched by huggingface_hub."""

from pathlib import Path

from eqco.runtime.errors import InputError, MissingExtraError

__all__ = ["HUB", "HUB_CARD", "HUB_CONFIG", "HUB_HEAD", "HUB_WEIGHTS", "hub_folder", "push_to_hub"]

HUB = "hf:"
# the names that timm and huggingface_hub look for
HUB_WEIGHTS, HUB_CONFIG, HUB_CARD = "model.safetensors", "config.json", "README.md"
# the projection head of a run, for eqco alone: beside the weights it would be taken for a part
HUB_HEAD = "eqco/head.safetensors"


def hub_folder(name: str) -> Path:
    """The folder that hf:FOLDER or hf:USER/NAME stands for; the latter is downloaded once.

    hf:USER/NAME@REVISION is a branch, tag or commit of it.
    """
    given = name.removeprefix(HUB)
    folder = Path(given).expanduser()
    if not folder.is_dir():
        folder = download(given)
    if not (folder / HUB_WEIGHTS).is_file():
        raise InputError(
            f"{name} has no {HUB_WEIGHTS}. Give a folder or a repository that eqco export --to hub "
            f"has written, or a file of weights."
        )
    return folder


def download(name: str) -> Path:
    """The files of a repository of the Hub, from the network or from what was downloaded before."""
    errors = hub_errors()
    import huggingface_hub

    repository, _, revision = name.partition("@")
    try:
        return Path(huggingface_hub.snapshot_download(repository, revision=revision or None))
    except errors as error:
        raise InputError(
            f"{HUB}{name} is no folder that exists, and as a repository of the Hub it cannot be "
            f"had: {first_line(error)} Go online, or copy its files to a folder and give "
            f"{HUB}FOLDER."
        ) from error


def push_to_hub(folder: Path | str, name: str, *, private: bool = False) -> str:
    """Upload what `eqco export --to hub` has written as the repository USER/NAME.

    Other files of the folder are not uploaded. The account is the one of `hf auth login`, or of the
    token in HF_TOKEN.

    Returns:
        The address of the repository.
    """
    hub_folder(f"{HUB}{folder}")
    errors = hub_errors()
    import huggingface_hub

    api = huggingface_hub.HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=address.repo_id,
            folder_path=str(folder),
            allow_patterns=[HUB_WEIGHTS, HUB_CONFIG, HUB_CARD, HUB_HEAD],
            delete_patterns=HUB_HEAD,  # one of an earlier export, where this one has none
        )
    except errors as error:
        raise InputError(
            f"{folder} could not be uploaded to {name}: {first_line(error)} Go online, log in by "
            f"hf auth login, and give a name such as USER/NAME."
        ) from error
    return str(address)


def hub_errors() -> tuple[type[Exception], ...]:
    """What huggingface_hub raises: OSError for missing files, its client's for the network."""
    try:
        from huggingface_hub import errors
    except ModuleNotFoundError as error:
        raise MissingExtraError("huggingface_hub", "hub") from error
    return OSError, errors.HTTPError, errors.HFValidationError


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error) or repr(error)).strip().splitlines()[0]
