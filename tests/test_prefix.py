"""What block keys promise to routing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.prefix import MAX_KEYS, BlockKeys, block_keys
from extproc.prompt import Prompt, Scope, Segment


def prompt_of(*content: Segment, scope: Scope = Scope()) -> Prompt:  # noqa: B008
    return Prompt("chat", scope, list(content))


def message(text: str | bytes, closed: bool = True, role: str = "user") -> Segment:
    data = text.encode() if isinstance(text, str) else text
    return Segment(b"text/message/" + role.encode(), data, closed)


def common(one: BlockKeys, other: BlockKeys) -> int:
    """Return how many keys two prompts share from the start."""
    pairs = zip(one.keys, other.keys, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.keys), len(other.keys)))


tags = st.sampled_from([b"text/message/user", b"text/part", b"tokens", b"raw", b"fields", b""])
segments = st.builds(
    Segment, tags, st.binary(max_size=300) | st.binary(min_size=900, max_size=3000), st.just(True)
)
contents = st.lists(segments, max_size=5)


@given(contents, contents, contents)
def test_equal_content_has_equal_keys_and_different_content_different_ones(
    shared: list[Segment], one: list[Segment], other: list[Segment]
) -> None:
    first, second = block_keys(prompt_of(*shared, *one)), block_keys(prompt_of(*shared, *other))
    assert common(first, second) >= len(block_keys(prompt_of(*shared)).keys)
    assert (first == second) == (one == other)


def test_a_growing_conversation_finds_the_last_key_of_every_turn_before_it() -> None:
    turns = [
        message("x" * length, role=role)
        for length in (3000, 10, 64, 0, 777)
        for role in ("user", "assistant")
    ]
    whole = block_keys(prompt_of(*turns))
    for count in range(1, len(turns) + 1):
        assert block_keys(prompt_of(*turns[:count])).keys[-1] in whole.keys


@given(st.binary(min_size=1, max_size=20_000), st.data())
def test_the_keys_of_a_text_that_is_cut_are_the_first_of_the_whole_texts(
    text: bytes, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(text)))
    whole = block_keys(prompt_of(message(text)))
    part = block_keys(prompt_of(message(text[:cut], closed=False)))
    assert part.keys == whole.keys[: len(part.keys)]
    assert part.ends == whole.ends[: len(part.ends)]
    assert part.ends == [end for end in whole.ends if end <= cut][: len(part.ends)]


@given(contents)
def test_ends_say_how_much_content_each_key_covers(content: list[Segment]) -> None:
    keys, ends, _ = block_keys(prompt_of(*content))
    assert len(keys) == len(ends)
    assert ends == sorted(ends)
    assert not ends or ends[-1] == sum(len(segment.data) for segment in content)


@given(st.integers(1, 500_000), st.integers(0, 500_000))
def test_at_most_an_eighth_or_64_bytes_of_a_match_is_lost(shared: int, more: int) -> None:
    text = b"x" * shared
    one = block_keys(prompt_of(message(text + b"y" * (more + 1))))
    other = block_keys(prompt_of(message(text + b"z" * (more + 1))))
    count = common(one, other)
    matched = one.ends[count - 1] if count else 0
    assert matched <= shared
    assert shared - matched <= max(64, matched / 8)


@given(st.integers(0, 20_000), st.integers(64, 20_000), st.integers(0, 5_000))
def test_what_follows_a_shared_system_prompt_is_told_apart_by_little_text(
    system: int, shared: int, more: int
) -> None:
    def prompt(question: bytes) -> Prompt:
        return prompt_of(message(b"s" * system), message(b"x" * shared + question * (more + 1)))

    one, other = block_keys(prompt(b"y")), block_keys(prompt(b"z"))
    matched = one.ends[common(one, other) - 1] - system
    assert matched <= shared
    assert shared - matched <= max(64, matched / 2)


def test_text_without_a_whole_block_has_a_key_only_if_it_is_closed() -> None:
    assert len(block_keys(prompt_of(message("hi"))).keys) == 1
    assert block_keys(prompt_of(message("hi", closed=False))) == BlockKeys([], [], [])
    assert len(block_keys(prompt_of(message(""))).keys) == 1
    assert block_keys(prompt_of(message("", closed=False))) == BlockKeys([], [], [])


def test_a_segment_that_ends_with_a_whole_block_has_one_key_for_it() -> None:
    whole, open_ended = (block_keys(prompt_of(message("x" * 64, closed=closed))) for closed in (True, False))
    assert whole.keys == open_ended.keys
    assert (whole.segments, open_ended.segments) == ([1], [])


def test_no_content_has_no_keys() -> None:
    assert block_keys(prompt_of()) == BlockKeys([], [], [])


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(0, 200))
def test_tags_and_data_are_never_mistaken_for_each_other(one: bytes, other: bytes, cut: int) -> None:
    joined = one + other
    forms = {
        (Segment(b"t", one, True), Segment(b"t", other, True)),
        (Segment(b"t", joined[:cut], True), Segment(b"t", joined[cut:], True)),
        (Segment(b"t", joined, True),),
        (Segment(b"t", b"", True), Segment(b"t", joined, True)),
        (Segment(b"t" + one, other, True),),
        (Segment(b"t", one, True), Segment(other, b"", True)),
    }
    assert len({tuple(block_keys(prompt_of(*form)).keys) for form in forms}) == len(forms)


def test_scopes_share_no_key() -> None:
    content = [message("x" * 5000), message("y")]
    scopes = [Scope(), Scope("m"), Scope("n"), Scope("m", "a"), Scope("m", "", "a"), Scope("m", tools=b"a")]
    keys = [block_keys(prompt_of(*content, scope=scope)).keys for scope in scopes]
    assert len(set().union(*keys)) == sum(map(len, keys))


def test_a_partial_scope_has_the_keys_of_what_it_shows() -> None:
    assert block_keys(prompt_of(message("x"), scope=Scope("m", partial=True))) == block_keys(
        prompt_of(message("x"), scope=Scope("m"))
    )


characters = st.text(alphabet=st.sampled_from("a é家👋"), max_size=600)


@given(st.text(st.sampled_from("a é家👋"), min_size=100, max_size=100), characters, characters, st.booleans())
def test_prompts_that_agree_up_to_the_limit_have_the_same_keys(
    start: str, one: str, other: str, closed: bool
) -> None:
    whole = block_keys(prompt_of(message(start)), limit=100)
    longer = block_keys(prompt_of(message(start + one), message(other)), limit=100)
    assert longer.keys == whole.keys
    cut = block_keys(prompt_of(message(start + other, closed=closed)), limit=100)
    assert cut.keys == whole.keys
    assert whole.ends[-1] == len(start.encode())


@given(st.lists(characters, min_size=1, max_size=5), st.integers(1, 2000))
def test_the_limit_counts_characters_of_all_messages(texts: list[str], limit: int) -> None:
    keys, ends, _ = block_keys(prompt_of(*map(message, texts)), limit=limit)
    assert keys
    assert ends[-1] == len("".join(texts)[:limit].encode())


def test_prompts_that_differ_before_the_limit_do_not_share_their_last_key() -> None:
    one, other = (block_keys(prompt_of(message("x" * 99 + end)), limit=100) for end in "ab")
    assert one.keys[-1] != other.keys[-1]


def test_images_and_tool_calls_enter_but_are_not_counted() -> None:
    image = Segment(b"part/image_url", b"\x80" * 16, True)
    other = Segment(b"part/image_url", b"\x81" * 16, True)
    keys = block_keys(prompt_of(image, message("x" * 100)), limit=100)
    assert keys.ends[-1] == 116
    assert block_keys(prompt_of(other, message("x" * 100)), limit=100).keys[-1] != keys.keys[-1]
    assert block_keys(prompt_of(image, message("x" * 100), other), limit=100) == keys


def test_the_limit_counts_ids_of_a_token_prompt_and_bytes_of_a_raw_body() -> None:
    assert block_keys(prompt_of(Segment(b"tokens", b"12345678" * 200, True)), limit=100).ends[-1] == 800
    assert block_keys(prompt_of(Segment(b"raw", "é".encode() * 200, True)), limit=101).ends[-1] == 101


def test_text_shorter_than_the_limit_is_keyed_whole() -> None:
    prompt = prompt_of(message("x" * 1000), message("y", closed=False))
    assert block_keys(prompt, limit=65_536) == block_keys(prompt)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_must_be_positive(limit: int) -> None:
    with pytest.raises(ValueError, match="limit must be positive"):
        block_keys(prompt_of(message("x")), limit=limit)


@pytest.mark.parametrize(
    "content",
    [
        [message("")] * 5000,
        [message("x" * 10_000_000)],
        [message("x" * 70)] * 2000,
        [message("x" * 64)] * 2000,
    ],
    ids=["empty messages", "10 MB", "short messages", "one block each"],
)
def test_there_are_never_more_keys_than_the_cap(content: list[Segment]) -> None:
    keys = block_keys(prompt_of(*content))
    assert len(keys.keys) == len(keys.ends) == MAX_KEYS
    assert keys == block_keys(prompt_of(*content, message("more")))


def test_400_kilobytes_need_few_keys() -> None:
    assert len(block_keys(prompt_of(message("x" * 400_000))).keys) < 160


def test_every_router_computes_the_same_keys() -> None:
    """Replicas agree without talking, whatever their process, machine and release: these numbers stay."""
    content = [message("Grüße " * 20), Segment(b"part/image_url", b"0123456789abcdef", True)]
    assert block_keys(prompt_of(*content, scope=Scope("m"))).keys == [
        0xCC1F7D654D803990,
        0x360B44B85F01FBB8,
        0x10E4C0AD99FF3F25,
        0x3A4179D41D0BF941,
    ]


@pytest.mark.parametrize("letter", ["a", "é", "語"])
def test_a_long_text_shares_its_keys_with_what_continues_it(letter: str) -> None:
    text = letter * 300_000
    short = block_keys(prompt_of(Segment(b"text", text.encode(), False)))
    long = block_keys(prompt_of(Segment(b"text", (text + "and more").encode(), True)))
    assert len(short.keys) > 70
    assert long.keys[: len(short.keys)] == short.keys


def test_the_keys_at_which_messages_end_are_told() -> None:
    content = prompt_of(message("system " * 100), message("user " * 50), message("cut", closed=False))
    keys = block_keys(content)
    ends = [keys.ends[count - 1] for count in keys.segments]
    assert ends == [700, 950]
