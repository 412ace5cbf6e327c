"""How many cells of each lesson are exempt from the comparison of outputs: measurements only.

A lesson that is not named has none. A new measured cell is counted here by hand, so that none
escapes the comparison unnoticed.
"""

MEASURED = {
    "00_start_here": 4,
    "01_the_redundancy": 6,
    "02_deriving_the_cache": 2,
    "03_building_the_cache": 6,
    "04_memory": 1,
    "05_mha_gqa_mqa": 10,
    "06_prefill_decode_roofline": 14,
    "07_static_cache": 15,
    "08_attention_without_scores": 5,
    "09_smaller_caches": 1,
    "09b_latent_attention": 2,
}
