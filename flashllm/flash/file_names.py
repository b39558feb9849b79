"""What the files of a converted model are called."""

MANIFEST_FILE = "manifest.json"
MANIFEST_HASH_FILE = "manifest.sha256"
RESIDENT_FILE = "resident.safetensors"
BUNDLES_FILE = "ffn.bundles"
CHECKSUMS_FILE = "ffn.crc32c"
PREDICTORS_FILE = "predictors.safetensors"
ACTIVITY_FILE = "activity.json"
ORDER_FILE = "order.safetensors"
SKEWING_FILE = "skewing.safetensors"
"""Made after a model was converted; the manifest does not name it."""
TENSOR_CHECKSUMS = {
    RESIDENT_FILE: "resident.crc32c",
    PREDICTORS_FILE: "predictors.crc32c",
}
"""Files of tensors -> the file with a checksum of each; models converted before have none."""
REQUIRED_FILES = (RESIDENT_FILE, BUNDLES_FILE, CHECKSUMS_FILE)
