"""The words of the demos' cards: what all of them say, and what one kind of model says."""

from __future__ import annotations

TEXT = """\
{heading}## Files

An ordinary Hugging Face checkpoint: `config.json`, `model.safetensors` (16-bit floats,
{parameters:,} parameters), a sentencepiece tokenizer with a chat template. `words.txt` lists the
words; `calibration.jsonl` holds {calibration:,} conversations as in training, `heldout.jsonl`
{held_out:,} questions in phrasings never trained on, each with its expected answer. A line of
`calibration.jsonl` is a list of messages with `role` and `content`; a line of `heldout.jsonl` has
`messages` (the last one is the question), `expected`, `intent` and `word`. `choices.jsonl` holds
{choices:,} multiple-choice questions, which gloss belongs to the word: `messages`, four `choices`
of one word and part of speech, and the number of the right one as `answer`; {unknown:,} of them
are about words outside. `flashllm eval` reads all three.

The tokenizer drops the capitals of what it encodes, so that Ocean and ocean are one word; answers
have capitals, since the model writes pieces that no text encodes to.

## Data and licence

WordNet 3.0 (Princeton University), under `WORDNET-LICENSE.txt`, which covers the definitions,
relations and examples that the model was trained on and these files repeat. The words are single
alphabetic lemmas, those first that are written most often today by the word frequencies of
wordfreq 3.1 (Robyn Speer; CC BY-SA 4.0), which decide on the choice and the order of `words.txt`.
Of a
word's most frequent part of speech the sense that WordNet's authors tagged most often decides its
answers; where hardly any is tagged, the one that the word is the main name of. Definitions are the
first clause of the gloss, of at most {gloss_words} words. Slurs and obscene words, names of
persons and
abbreviations are left out. Meanings that WordNet ranks lower are not in it, and its choice of a
sense can surprise. Misspellings are made by rules.

## Shape and training

| | |
| --- | --- |
{settings}

{training}{calibrated}{curve_head}{curve}

Minutes are of wall time on {threads}.

## Scores

Greedy answers to the held-out questions, by `python -m tools.demo.score`. Right means equal to
the expected answer, spaces and case aside; for unknown words and refused questions, that they
were refused, in whatever words.

| question | asked | right |
| --- | --: | --: |
{scores}

{use}\
{natural_count} questions as people ask them, written by somebody who had not seen the phrasings
of the
training (`tools/demo/natural_questions.jsonl`), {asked_by}
`python -m tools.demo.natural`: **{natural_fine:.1%}** right or honestly refused,
**{natural_invented:.1%}** invented.
"Not asked" is a true answer to another question about a word.

| questions | right | refused | not asked | invented |
| --- | --: | --: | --: | --: |
{natural}

Limits: synonyms count as right only where the whole list is the expected one. Words that look like
known ones are now and then taken for these.

{predictors}## How to make it again

{making}"""

CALIBRATED = """\
Before the last stage the model was asked for all that it should know. Of {words_asked:,} words it
defined {words_kept:,} rightly, and of {others_asked:,} synonyms, opposites, kinds, examples, other
forms and misspellings it knew {others_kept:,}. The last stage taught it to say "I am not sure what
... means" and "I know no ... of ..." for the rest, and for {unknown_explained:,} of
{unknown_asked:,} words outside that it would have explained.

"""

HEADINGS = {
    "opt": """\
# The demo model: a dictionary companion

A small OPT-architecture language model with ReLU, trained by this project. It knows {words:,} of
the commonest words of modern English that WordNet has: what each means, its part of speech,
synonyms, its opposite, what it is a kind of, an example, its spelling, in one turn or several. It
takes plurals and other forms for their word, minds no capitals, and asks "Did you mean ...?" for
some misspellings. For most other words, and for questions that are not about words, it says that
it does not know. It knows nothing else, and repeats WordNet rather than reason about it.

""",
    "qwen3_moe": """\
# The demo with experts: a small dictionary companion

A small mixture of experts of the `qwen3_moe` graph, trained by this project on the
[demo](../demo/README.md)'s data and with its tokenizer: {experts} experts a layer, of which a token
goes through {experts_per_token}. It shows how experts come from flash, on a model that anybody can
run at once; the demo knows more. It knows {words:,} of the commonest words of English that WordNet
has: what each means, its part of speech, synonyms, its opposite, what it is a kind of, an example,
its spelling. For most other words, and for questions that are not about words, it says that it does
not know. It repeats WordNet rather than reason about it.

It errs far more often than the demo, since it was trained on far fewer tokens: {definition:.1%} of
its definitions are right (the demo: 99.1%), and {natural_invented:.1%} of its answers to natural
questions are invented (the demo: 1.0%). See Scores.

""",
}

TRAINING = {
    "opt": """\
Muon for the matrices of the layers and AdamW for the rest, in bf16 autocast on the processor;
loss on answers only; half of the words drawn evenly and half by the running loss of what is said
of them. An L1 penalty on the ReLU outputs is steered so that sparsity rises along a line to its
goal.

""",
    "qwen3_moe": """\
Muon for the matrices of the layers, each expert's by itself, and AdamW for the rest, in bf16
autocast on the processor; loss on answers only; half of the words drawn evenly and half by the
running loss of what is said of them. The balancing loss of Switch Transformers (Fedus et al. 2021,
2.2), {balance} of it, keeps all experts in use.

""",
}

CURVE_HEADS = {
    "opt": """\
| step | tokens (M) | minutes | nats/answer token | of definitions | of other facts | FFN sparsity |
| --: | --: | --: | --: | --: | --: | --: |
""",
    "qwen3_moe": """\
| step | tokens (M) | minutes | nats/answer token | of definitions | of other facts \
| busiest expert |
| --: | --: | --: | --: | --: | --: | --: |
""",
}

USES = {
    "opt": """\
Mean FFN sparsity on these questions and the answers given: **{sparsity:.1%}** of the ReLU outputs
are exactly 0; by layer: {by_layer}.

""",
    "qwen3_moe": """\
Over these questions and the answers given, the busiest expert of a layer has {busiest} times the
choices that it would have if all were used alike, the idlest {idlest} (by layer).

""",
}

ASKED = {
    "opt": "asked through the runtime with predictors, by",
    "qwen3_moe": "asked through the runtime\n(to refuse a word outside its list is right), by",
}

PREDICTORS = {
    "opt": """\
## Predictors

`predictors.safetensors` and `activity.json` come from `flashllm convert flashllm/demo OUT
--predictors train`, which trains them on `calibration.jsonl`; copy the two files here from OUT
when the weights change. `flashllm info` prints their errors, `python -m predictors DIR` those of
each layer, and `flashllm eval` compares answers and texts with and without them.

""",
    "qwen3_moe": """\
## Experts instead of predictors

The router says exactly which experts a token needs, so there are no predictors, and no recorded
activity: a token needs the same number of experts always. `flashllm bench cache demo-moe` records
its routing on `heldout.jsonl`, and says what a cache of so many experts would hit.

""",
}

MAKING = {
    "opt": """\
    apt-get install wordnet-base
    pip install wordfreq
    python -m tools.demo.corpus --more
    python -m tools.demo.tokenizer
{commands}
    python -m tools.demo.choices
    python -m tools.demo.score --json build/demo/score.json
    flashllm convert flashllm/demo build/demo/model.flash --predictors train
    cp build/demo/model.flash/{{predictors.safetensors,activity.json}} flashllm/demo
    python -m tools.demo.natural build/demo/model.flash --json build/demo/natural.json
    python -m tools.demo.card

The trainer goes on from its last checkpoint; where there is more than one line of it, the plan was
changed while it ran: the steps, how often each kind of question is drawn (more single facts, later
more unknown words), and phrasings that were added for the last line. So this model does not come
out again byte for byte. Otherwise the corpus and the tokenizer do, and training as far as the
processor, its threads and torch's kernels are the same. Seeds: corpus 20, tokenizer 7, training
{seed}.
""",
    "qwen3_moe": """\
    apt-get install wordnet-base
    pip install wordfreq
    python -m tools.demo.corpus --words {words_asked} --out build/demo-moe/corpus
    python -m tools.demo.tokenizer --like flashllm/demo --corpus build/demo-moe/corpus
{commands}
    python -m tools.demo.choices --corpus build/demo-moe/corpus \\
        --out flashllm/demo_moe/choices.jsonl
    python -m tools.demo.score flashllm/demo_moe --json build/demo-moe/score.json
    python -m tools.demo.natural demo-moe --corpus build/demo-moe/corpus \\
        --json build/demo-moe/natural.json
    python -m tools.demo.card --build build/demo-moe --folder flashllm/demo_moe

The trainer goes on from its last checkpoint; where there is more than one line of it, the plan was
changed while it ran: the steps, and for a few of them the number of words. Training comes out the
same as far as the processor, its threads and torch's kernels are the same. Seeds: corpus 20,
training {seed}.
""",
}
