"""Other programs that speculate, on the same weights and prompts: `jaxspec bench --against`.

named.py          which there are, and what each needs
files.py          our weights as their files
transformers.py   Hugging Face's generate
llama_cpp.py      llama.cpp
worker.py         a process for each, so that no two frameworks share threads, memory or a crash
panel.py          the peers of one run, which take turns with our cases
against.py        who was faster, and whether tokens are the same
"""
