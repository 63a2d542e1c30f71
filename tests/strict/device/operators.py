"""What the strict device has to know of operators, by their names in ATen."""

# Their result's size, or a number for the host, depends on values.
ASKING = {
    "nonzero",
    "masked_select",
    "unique_consecutive",
    "unique_dim",
    "_unique",
    "_unique2",
    "bincount",
    "multinomial",
    "equal",
    "allclose",
    "_local_scalar_dense",
    "is_nonzero",
}
NO_WORK = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "detach_",
    "lift_fresh",
    "alias",
    "_local_scalar_dense",
}
# They take a CPU tensor without dimensions besides what is computed element by element.
TAKE_SCALARS = {"fill_", "masked_fill", "masked_fill_", "where", "index_put_", "index_put", "copy_"}
INDEXING = {"index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index"}
