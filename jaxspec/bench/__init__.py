"""The measured side: each module prints one figure as a ratio within one run.

python -m jaxspec.bench plain       plain decoding against transformers, and the memory bandwidth
python -m jaxspec.bench round       one round against its parts timed alone
python -m jaxspec.bench products    passes over several tokens against one, by product
python -m jaxspec.bench int8        int8 weights and caches against float ones
python -m jaxspec.bench capacity    a large cache, little used, against a small one
python -m jaxspec.bench compile     the first call for a shape, and the second
python -m jaxspec.bench speculate   speculative decoding against plain decoding

`jaxspec bench`, whose parts are in `speed`, measures speculative against plain decoding on questions of six tasks.
`jaxspec plan`, whose parts are in `plan`, says beforehand what it would gain, from what is kept and what rounds cost.
`jaxspec calibrate`, whose parts are in `skipping`, finds the blocks that a target drafts best without.
"""
