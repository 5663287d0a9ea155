"""The configuration file: what it accepts, and what it says about what it does not."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.address import Address, parse_address, parse_endpoint
from extproc.commands.check import key_table
from extproc.config import (
    MAX_FILE_BYTES,
    Balance,
    ConfigError,
    Match,
    PoolConfig,
    Strategy,
    keys,
    load,
    needing_restart,
    parse,
    until_restart,
    with_settings,
)
from extproc.pool.ease import SlowStart
from extproc.pool.scraping.scraper import Settings
from extproc.prompt import APIS
from extproc.routing.spill import Balance as RoutingBalance
from extproc.routing.spill import SpillRule

ROOT = Path(__file__).parent.parent

EXAMPLE = """\
listen: 127.0.0.1:9002
health: 127.0.0.1:9003
metrics: 127.0.0.1:9090
pools:
- name: llama
  match: {route: "llm-*"}
  strategy: PREFIX_AWARE
  prefixLength: auto
  concurrencyThreshold: 256
  endpoints: {static: ["127.0.0.1:8001", "127.0.0.1:8002"]}
"""


def one_pool(body: str = "", endpoints: str = '{static: ["127.0.0.1:8001"]}') -> str:
    lines = "".join(f"  {line}\n" for line in body.splitlines())
    return f"pools:\n- name: a\n{lines}  endpoints: {endpoints}\n"


def pool(body: str = "", endpoints: str = '{static: ["127.0.0.1:8001"]}') -> PoolConfig:
    return parse(one_pool(body, endpoints), "f.yaml").pools[0]


def complaints(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml")
    return str(caught.value).splitlines()


def complaint(text: str) -> str:
    lines = complaints(text)
    assert len(lines) == 1, lines
    return lines[0]


class TestWhatAFileMeans:
    def test_the_example_is_taken_as_written(self) -> None:
        config = parse(EXAMPLE, "f.yaml")
        assert (config.listen, config.health, config.metrics) == (
            Address("127.0.0.1", 9002),
            Address("127.0.0.1", 9003),
            Address("127.0.0.1", 9090),
        )
        (llama,) = config.pools
        assert llama.match == Match(route="llm-*")
        assert llama.strategy is Strategy.PREFIX_AWARE
        assert llama.prefix_length == "auto"
        assert llama.concurrency_threshold == 256
        assert llama.balance == Balance(factor=1.25, floor=8)
        assert llama.endpoints.static == ("127.0.0.1:8001", "127.0.0.1:8002")

    def test_a_name_and_endpoints_are_enough(self) -> None:
        assert parse(one_pool(), "f.yaml") == parse(
            EXAMPLE.replace("llama", "a")
            .replace('  match: {route: "llm-*"}\n', "")
            .replace(', "127.0.0.1:8002"', ""),
            "f.yaml",
        )

    def test_defaults_of_the_spill_rule_are_those_of_the_rule(self) -> None:
        default = pool()
        assert default.balance is not None
        assert RoutingBalance(default.balance.factor, default.balance.floor) == RoutingBalance()
        assert default.concurrency_threshold == SpillRule().concurrency_threshold

    def test_health_and_metrics_can_be_off(self) -> None:
        config = parse(f"health: null\nmetrics: null\n{one_pool()}", "f.yaml")
        assert config.health is None
        assert config.metrics is None

    def test_balance_is_on_off_or_given(self) -> None:
        assert pool("balance: true").balance == Balance()
        assert pool("balance: false").balance is None
        assert pool("balance: {factor: 2}").balance == Balance(factor=2, floor=8)
        assert pool("balance: {floor: 1}").balance == Balance(factor=1.25, floor=1)

    def test_slow_start_is_on_off_or_given_and_its_defaults_are_those_of_the_pool(self) -> None:
        default = pool().slow_start
        assert default == pool("slowStart: true").slow_start == pool("slowStart: {}").slow_start
        assert default is not None
        assert SlowStart(default.window, default.cold_window, default.least_share) == SlowStart()
        assert pool("slowStart: false").slow_start is None
        given = pool("slowStart: {window: 2m, coldWindow: 0s, leastShare: 1}").slow_start
        assert given is not None
        assert (given.window, given.cold_window, given.least_share) == (120.0, 0.0, 1.0)

    def test_engines_metrics_are_read_by_default_as_the_scraper_does_by_itself(self) -> None:
        default = pool().engine_metrics
        assert default == pool("engineMetrics: true").engine_metrics
        assert default == pool("engineMetrics: {}").engine_metrics
        assert default is not None
        same = {name: getattr(default, name) for name in type(default).model_fields if name != "tls"}
        assert Settings(**same) == Settings()
        assert pool("engineMetrics: false").engine_metrics is None

    def test_engines_metrics_can_be_read_elsewhere_and_over_tls(self, tmp_path: Path) -> None:
        keys = "{path: /a/b, port: 8002, scheme: https, tokenFile: token, tls: {ca: ca.pem, serverName: a}}"
        read = parse(one_pool(f"engineMetrics: {keys}"), "f.yaml", tmp_path).pools[0].engine_metrics
        assert read is not None
        assert read.tls is not None
        assert (read.path, read.port, read.token_file) == ("/a/b", 8002, tmp_path / "token")
        assert (read.tls.ca, read.tls.server_name) == (tmp_path / "ca.pem", "a")

    def test_prefix_length_is_auto_or_a_number_of_characters(self) -> None:
        assert pool("prefixLength: 1024").prefix_length == 1024
        assert pool("prefixLength: 65536").prefix_length == 65536

    @pytest.mark.parametrize(
        ("written", "seconds"), [("10s", 10.0), ("500ms", 0.5), ("2m", 120.0), ("1h", 3600.0), ("7", 7.0)]
    )
    def test_a_duration_is_a_number_with_a_unit_or_of_seconds(self, written: str, seconds: float) -> None:
        assert parse(f"drainTimeout: {written}\n{one_pool()}", "f.yaml").drain_timeout == seconds

    def test_the_path_of_an_endpoints_file_starts_at_the_configuration(self, tmp_path: Path) -> None:
        file = tmp_path / "warmroute.yaml"
        file.write_text(one_pool(endpoints="{file: eps.yaml}"))
        assert load(file).pools[0].endpoints.file == tmp_path / "eps.yaml"
        file.write_text(one_pool(endpoints="{file: /srv/eps.yaml}"))
        assert load(file).pools[0].endpoints.file == Path("/srv/eps.yaml")

    def test_a_byte_order_mark_is_no_part_of_the_text(self, tmp_path: Path) -> None:
        file = tmp_path / "f.yaml"
        file.write_bytes(b"\xef\xbb\xbf" + EXAMPLE.encode())
        assert load(file) == parse(EXAMPLE, "f.yaml")

    def test_a_configuration_cannot_be_changed_in_place(self) -> None:
        config = parse(EXAMPLE, "f.yaml")
        with pytest.raises(ValueError, match="frozen"):
            config.drain_timeout = 3.0
        assert hash(config) == hash(parse(EXAMPLE, "f.yaml"))

    def test_what_is_dumped_can_be_read_again(self) -> None:
        config = parse(EXAMPLE, "f.yaml")
        assert parse(config.model_dump_json(exclude_none=True), "dump.json") == config


class TestWhatIsSaidAboutMistakes:
    def test_a_problem_names_file_line_key_value_and_what_is_allowed(self) -> None:
        assert complaint(EXAMPLE.replace("concurrencyThreshold: 256", "concurrencyThreshold: 5000")) == (
            "f.yaml:9: pools[0].concurrencyThreshold: is 5000; must be a whole number from 1 to 1024"
        )

    def test_all_problems_are_named_at_once_in_the_order_of_the_file(self) -> None:
        text = (
            "listen: 127.0.0.1:99002\n"
            "helth: 127.0.0.1:9003\n"
            + one_pool("strategy: RANDM\nprefixLength: 12", '{static: ["gpu-1:8001", "[::1]:8001", 17]}')
            + "- 7\n"
        )
        assert [line.split(": ")[0] + ": " + line.split(": ")[1] for line in complaints(text)] == [
            "f.yaml:1: listen",
            "f.yaml:2: helth",
            "f.yaml:5: pools[0].strategy",
            "f.yaml:6: pools[0].prefixLength",
            "f.yaml:7: pools[0].endpoints.static[0]",
            "f.yaml:7: pools[0].endpoints.static[2]",
            "f.yaml:8: pools[1]",
        ]

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [
            ("concurencyThreshold: 8", "concurrencyThreshold"),
            ("concurrency_threshold: 8", "concurrencyThreshold"),
            ("prefix-length: auto", "prefixLength"),
            ("Strategy: RANDOM", "strategy"),
            ("maxInFlight: 3", "pools[].shed.maxInFlight"),
        ],
    )
    def test_an_unknown_key_is_refused_with_the_nearest_valid_one(self, wrong: str, right: str) -> None:
        key = wrong.split(":")[0]
        said = complaint(one_pool(wrong))
        assert said.startswith(f"f.yaml:3: pools[0].{key}: unknown key")
        assert said.endswith(f"did you mean {right}?")

    def test_an_unknown_key_like_no_other_is_refused_with_all_of_them(self) -> None:
        assert complaint(one_pool("shed: {maxInFlight: 3, xyz: 1}")) == (
            "f.yaml:3: pools[0].shed.xyz: unknown key; the keys here are maxInFlight"
        )

    @pytest.mark.parametrize("field", [name for name in PoolConfig.model_fields if "_" in name])
    def test_python_names_are_no_keys_of_a_file(self, field: str) -> None:
        assert "unknown key" in complaint(one_pool(f"{field}: 2048"))

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [("prefix_aware", "PREFIX_AWARE"), ("LEAST_OUTSTANDING", "LEAST_OUTSTANDING_REQUESTS")],
    )
    def test_a_wrong_word_is_refused_with_the_nearest_right_one(self, wrong: str, right: str) -> None:
        said = complaint(one_pool(f"strategy: {wrong}"))
        assert "must be one of RANDOM, LEAST_OUTSTANDING_REQUESTS, PREFIX_AWARE" in said
        assert said.endswith(f"did you mean {right}?")

    @pytest.mark.parametrize(
        "line",
        [
            "concurrencyThreshold: 0",
            "concurrencyThreshold: 1025",
            "concurrencyThreshold: true",
            "concurrencyThreshold: 256.0",
            'concurrencyThreshold: "16"',
            "concurrencyThreshold:",
            "prefixLength: 1023",
            "prefixLength: 65537",
            "prefixLength: true",
            "prefixLength: full",
            "balance: {factor: 1}",
            "balance: {factor: .nan}",
            "balance: {factor: .inf}",
            "balance: {floor: 0}",
            "balance: 1.25",
            "balance:",
            "slowStart: 30s",
            "slowStart:",
            "slowStart: {window: -1s}",
            "slowStart: {window: 2h}",
            "slowStart: {coldWindow: .nan}",
            "slowStart: {leastShare: 0}",
            "slowStart: {leastShare: 1.1}",
            "engineMetrics: /metrics",
            "engineMetrics:",
            "engineMetrics: {path: metrics}",
            'engineMetrics: {path: "/a b"}',
            'engineMetrics: {path: "/a#b"}',
            "engineMetrics: {port: 0}",
            "engineMetrics: {port: 65536}",
            "engineMetrics: {scheme: ftp}",
            "engineMetrics: {interval: 50ms}",
            "engineMetrics: {interval: .nan}",
            "engineMetrics: {interval: 10s, idleInterval: 5s}",
            "engineMetrics: {timeout: 0}",
            'engineMetrics: {tokenFile: ""}',
            "engineMetrics: {tls: {ca: ca.pem}}",
            "engineMetrics: {scheme: https, tls: {insecureSkipVerify: 1}}",
            "shed: {maxInFlight: 0}",
            "shed: {}",
            "shed: 3",
            "match: {}",
            'match: {route: ""}',
            "match: {route: a, metadata: b}",
            "match: llm-*",
            "match: {models: llama}",
            "match: {models: [null]}",
        ],
    )
    def test_values_out_of_range_or_kind_are_refused(self, line: str) -> None:
        assert complaint(one_pool(line)).startswith("f.yaml:3: pools[0].")

    @pytest.mark.parametrize("value", ["-1s", "61m", "10 s", "s", "true", ".nan", ".inf", "[]"])
    def test_a_duration_out_of_range_or_form_is_refused(self, value: str) -> None:
        assert complaint(f"drainTimeout: {value}\n{one_pool()}").startswith("f.yaml:1: drainTimeout: is ")

    @pytest.mark.parametrize("name", ["'a b'", "''", "no", "2024-01-01", "'a\n'", "é", "-a", "a" * 129])
    def test_a_pool_name_that_cannot_be_a_label_is_refused(self, name: str) -> None:
        assert "pools[0].name: " in complaint(one_pool().replace("name: a", f"name: {name}"))

    @pytest.mark.parametrize(
        "endpoints",
        [
            "{}",
            '{static: ["127.0.0.1:1"], file: eps.yaml}',
            "{static: []}",
            "{static:}",
            "{file: ''}",
            '["127.0.0.1:1"]',
            "{files: eps.yaml}",
        ],
    )
    def test_endpoints_are_exactly_one_of_static_and_file(self, endpoints: str) -> None:
        assert all("pools[0].endpoints" in line for line in complaints(one_pool(endpoints=endpoints)))

    def test_an_endpoint_named_twice_is_refused_however_it_is_spelt(self) -> None:
        said = complaint(one_pool(endpoints='{static: ["[::1]:80", "1.2.3.4:80", "[0:0::1]:80"]}'))
        assert said.endswith("names [::1]:80 more than once")

    def test_what_is_required_is_named_with_its_meaning(self) -> None:
        said = complaint("pools:\n- name: a\n")
        assert said.startswith("f.yaml:2: pools[0].endpoints: is required: Where the endpoints come from")

    def test_two_services_cannot_listen_on_one_port(self) -> None:
        assert complaint(f"listen: 0.0.0.0:9003\n{one_pool()}") == (
            "f.yaml:1: health: is 127.0.0.1:9003, which collides with listen 0.0.0.0:9003: give each its own"
        )

    def test_values_that_yaml_read_as_something_else_are_to_be_quoted(self) -> None:
        assert complaint(f"listen: 22:22\n{one_pool()}").endswith("put it in quotes")


class TestPoolsThatCannotBeToldApart:
    @staticmethod
    def pools(*matches: str | None) -> str:
        text = "pools:\n"
        for at, match in enumerate(matches):
            text += f"- name: p{at}\n  endpoints: {{file: x}}\n" + (f"  match: {match}\n" if match else "")
        return text

    def test_names_are_unique(self) -> None:
        said = complaint(self.pools("{route: a}", "{route: b}").replace("p1", "p0"))
        assert said == "f.yaml:5: pools[1].name: is 'p0', the name of pools[0]: names are unique"

    def test_each_of_several_pools_needs_a_match(self) -> None:
        said = complaint(self.pools(None, "{route: a}"))
        assert said.startswith("f.yaml:2: pools[0]: pool 'p0' has no match, and there are 2 pools")

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("{route: a}", "{route: a}"),
            ('{route: "llm-*"}', "{route: llm-a}"),
            ('{route: "llm-*"}', '{route: "llm-a?*"}'),
            ('{route: "*"}', '{route: "[ab]"}'),
            ("{metadata: a}", "{metadata: a}"),
            ("{models: [x, y]}", "{models: [y]}"),
            ('{models: ["x*"]}', "{route: a, models: [x1, x2]}"),
            ("{route: a, models: [x]}", "{route: a, models: [x]}"),
        ],
    )
    def test_a_pool_that_nothing_can_reach_is_refused_and_both_are_named(
        self, first: str, second: str
    ) -> None:
        said = complaint(self.pools(first, second))
        assert said.startswith("f.yaml:7: pools[1].match: pool 'p1' collides with pools[0] 'p0'")

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("{route: llm-a}", '{route: "llm-*"}'),
            ('{route: "llm-?"}', '{route: "llm-*"}'),
            ('{route: "llm-?"}', '{route: "llm-[ab]"}'),
            ('{route: "*-b*"}', '{route: "[a-b]x"}'),
            ("{metadata: a}", "{metadata: b}"),
            ("{metadata: a}", "{route: a}"),
            ("{route: a}", "{metadata: a}"),
            ("{models: [x]}", "{models: [x, y]}"),
            ("{route: a, models: [x]}", "{route: b, models: [x]}"),
            ("{route: a, models: [x]}", "{route: a}"),
            ("{route: a}", "{route: a, models: [x]}"),
        ],
    )
    def test_pools_that_each_have_requests_of_their_own_are_taken(self, first: str, second: str) -> None:
        assert len(parse(self.pools(first, second), "f.yaml").pools) == 2


class TestTextThatIsNotTaken:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "f.yaml: is empty"),
            ("# nothing yet\n", "f.yaml: is empty"),
            ("- a\n", "f.yaml:1: must be a mapping of keys (listen,"),
            ("text\n", "f.yaml:1: must be a mapping of keys (listen,"),
            ("listen: [\n", "f.yaml:2:1: not valid YAML: "),
            ("listen: a: b\n", "f.yaml:1:10: not valid YAML: "),
            ("listen: [::]:9002\n", "f.yaml:1:10: not valid YAML: while parsing a flow node"),
            ("\tlisten: x\n", "f.yaml:1:1: not valid YAML: "),
            ("a: 1\n---\nb: 1\n", "f.yaml:2:1: not valid YAML: expected a single document"),
            ("a: \x07\n", "f.yaml:1:4: the character '\\x07' is not allowed in YAML"),
            ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: 'a' is given twice, first on line 1"),
            ("a:\n  x: {b: 1, b: 2}\n", "f.yaml:2:13: 'b' is given twice, first on line 2"),
            ("on: 1\n", "f.yaml:1:1: a key must be text, this is 'on'"),
            ("? [a]\n: 1\n", "f.yaml:1:3: a key must be text"),
            ("a: &x 1\n", "f.yaml:1:4: anchors (&) and aliases (*) are not accepted"),
            ("<<: {a: 1}\n", "f.yaml:1:1: merge keys (<<) are not accepted"),
            ("a: !!python/object/apply:os.abort []\n", "f.yaml:1:4: the tag "),
            ("a: !!bool maybe\n", "f.yaml:1:4: 'maybe' cannot be read"),
            ("a: 2024-13-45\n", "f.yaml:1:4: '2024-13-45' cannot be read"),
            (f"a: {'9' * 5000}\n", "f.yaml:1:4: '9999"),
            ("[" * 100_000, "f.yaml:1:33: nested deeper than 32 levels"),
            ('a: "\\U00110000"\n', "f.yaml:1:7: not valid YAML: an escape"),
            ('a: "\\UFFFFFFFF"\n', "f.yaml:1:7: not valid YAML: an escape"),
            ('"a\\e[31m\\nb": 1\n', "f.yaml:1:1: the character '\\x1b' is not accepted"),
            ("a:\n- |\n  two\n  lines\n", "f.yaml:2:3: the character '\\n' is not accepted"),
            ('a: {b: "\\ud800"}\n', "f.yaml:1:8: the character '\\ud800' is not accepted"),
        ],
    )
    def test_it_is_refused_with_its_place(self, text: str, said: str) -> None:
        assert complaint(text).startswith(said)

    def test_a_short_text_cannot_grow_to_gigabytes(self) -> None:
        bomb = "a: &a [x, x]\n" + "".join(
            f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)
        )
        assert "anchors (&) and aliases (*) are not accepted" in complaint(bomb)

    @given(st.integers(0, 0xFFFFFFFF))
    def test_what_an_escape_stands_for_can_be_printed_or_is_refused(self, number: int) -> None:
        text = one_pool(f'match: {{route: "a\\U{number:08x}"}}')
        with suppress(ConfigError):
            assert parse(text, "f.yaml").model_dump_json().encode()

    @given(st.text(max_size=200) | st.text(alphabet="ab:-[]{}&*!|>'\"# \n\t0123456789.,?%@`<", max_size=60))
    def test_any_text_is_a_configuration_or_refused_as_one(self, text: str) -> None:
        for whole in (text, EXAMPLE + text, one_pool(text)):
            with suppress(ConfigError):
                parse(whole, "f.yaml")


class TestFilesThatCannotBeRead:
    def said(self, path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            load(path)
        return str(caught.value)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        assert self.said(tmp_path / "no.yaml") == f"{tmp_path}/no.yaml: no such file"

    def test_a_directory(self, tmp_path: Path) -> None:
        assert self.said(tmp_path) == f"{tmp_path}: is a directory: name the file in it"

    def test_a_file_below_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("")
        assert self.said(tmp_path / "f" / "g") == f"{tmp_path}/f/g: cannot be read: Not a directory"

    def test_text_in_another_encoding(self, tmp_path: Path) -> None:
        file = tmp_path / "f.yaml"
        file.write_bytes("name: gerät".encode("latin-1"))
        assert self.said(file) == f"{file}: is not UTF-8: byte 0xe4 at offset 9"

    def test_a_file_without_end(self) -> None:
        assert self.said(Path("/dev/zero")) == (
            f"/dev/zero: is larger than {MAX_FILE_BYTES} bytes: list endpoints in a file of their own"
        )


class TestAddresses:
    @pytest.mark.parametrize(
        "text",
        ["127.0.0.1:9002", "0.0.0.0:0", "[::1]:9002", "[::]:65535", "localhost:80", "unix:/run/x.sock"],
    )
    def test_an_address_is_written_as_it_was_read(self, text: str) -> None:
        assert str(parse_address(text)) == text

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("9002", "must be host:port"),
            (":9002", "names no host: write 0.0.0.0:9002"),
            ("127.0.0.1", "must be host:port"),
            ("127.0.0.1:", "port ''"),
            ("127.0.0.1:65536", "from 0 to 65535"),
            ("127.0.0.1:-1", "from 0 to 65535"),
            ("127.0.0.1:٣", "from 0 to 65535"),
            ("127.0.0.256:1", "not an IPv4 address"),
            ("::1:9002", "goes in brackets"),
            ("[::1%lo]:9002", "zone"),
            ("[::g]:9002", "not an IPv6 address"),
            ("a_b:1", "neither an IP address nor a host name"),
            ("unix:run/x.sock", "absolute path"),
            ("unix:/" + "x" * 107, "107 bytes"),
            ("http://a:1", "goes in brackets"),
        ],
    )
    def test_what_is_no_address_is_refused_with_the_remedy(self, text: str, said: str) -> None:
        with pytest.raises(ValueError, match=re.escape(said)):
            parse_address(text)

    @pytest.mark.parametrize(
        ("text", "canonical"),
        [
            ("10.0.0.7:8000", "10.0.0.7:8000"),
            ("[2001:DB8:0:0::7]:8000", "[2001:db8::7]:8000"),
            ("[::ffff:1.2.3.4]:80", "[::ffff:1.2.3.4]:80"),
            ("10.0.0.7:08000", "10.0.0.7:8000"),
        ],
    )
    def test_an_endpoint_is_spelt_as_envoy_spells_it(self, text: str, canonical: str) -> None:
        assert parse_endpoint(text) == canonical

    @pytest.mark.parametrize(
        "text",
        ["10.0.0.7", "10.0.0.7:0", "10.0.0.7:65536", "::1:80", "0.0.0.0:80", "[::]:80", "224.0.0.1:80"],
    )
    def test_an_endpoint_that_cannot_be_connected_to_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError):
            parse_endpoint(text)

    def test_a_host_name_is_no_endpoint_and_the_reason_is_given(self) -> None:
        said = complaint(one_pool(endpoints='{static: ["gpu-1:8001"]}'))
        assert "Envoy's override_host matches a host by address, never by name" in said

    def test_the_file_names_its_unix_socket(self) -> None:
        config = parse(f"listen: unix:/run/x.sock\n{one_pool()}", "f.yaml")
        assert config.listen.is_unix
        assert "health" in complaint(f"health: unix:/run/x.sock\n{one_pool()}")


class TestTls:
    @pytest.mark.parametrize(
        ("tls", "said"),
        [
            ("{}", "tls: must have cert and key, or selfSigned: true"),
            ("{cert: a}", "tls: must have cert and key, or selfSigned: true"),
            ("{selfSigned: false}", "tls: must have cert and key, or selfSigned: true"),
            ("{selfSigned: true, cert: a, key: b}", "tls: selfSigned excludes cert and key: keep one"),
            ("{selfSigned: 1}", "tls.selfSigned: is 1; must be true or false"),
            ("{cert: 5, key: b}", "tls.cert: is 5; must be text: a path"),
            ("{cert: a, key: b, clientCA: c}", "tls.clientCA: unknown key; did you mean clientCa?"),
            ("true", "tls: is true; must be a mapping with cert, key, clientCa, selfSigned"),
        ],
    )
    def test_what_cannot_be_served_is_refused(self, tls: str, said: str) -> None:
        assert said in complaint(f"tls: {tls}\n{one_pool()}")

    def test_relative_paths_start_at_the_file_and_a_change_needs_a_restart(self) -> None:
        config = parse(f"tls: {{cert: a, key: /b, clientCa: c/d}}\n{one_pool()}", "f", Path("/etc/x"))
        assert config.tls is not None
        assert (config.tls.cert, config.tls.key) == (Path("/etc/x/a"), Path("/b"))
        assert config.tls.client_ca == Path("/etc/x/c/d")
        assert needing_restart(config, parse(one_pool(), "f")) == ["tls"]


class TestEndpointsInKubernetes:
    @pytest.mark.parametrize(
        ("endpoints", "said"),
        [
            ("{}", "must have exactly one of the keys static, file, service, inferencePool, pods"),
            ("{service: llama}", "service: is the text 'llama'; must be a mapping with name, port"),
            ("{service: {name: llama}}", "service.port: is required: The name that the Service gives"),
            ("{service: {name: llama.x, port: 80}}", "service.name: is the text 'llama.x'; must be a name"),
            ("{service: {name: a, port: 0}}", "service.port: is 0; must be a port's name, or a whole number"),
            ("{service: {name: a, port: 65536}}", "service.port: is 65536; must be"),
            ("{service: {name: a, port: '80'}}", "service.port: is the text '80'; must be a name, or a"),
            ("{service: {name: a, port: Http}}", "service.port: is the text 'Http'; must be a port's name"),
            ("{service: {name: a, port: true}}", "service.port: is true; must be a port's name"),
            ("{service: {name: a, port: 80, ipFamily: IPv5}}", "service.ipFamily: is the text 'IPv5'; must"),
            ("{service: {name: a, port: 80, namespace: A}}", "service.namespace: is the text 'A'"),
            ("{service: {name: a, port: 80, familiy: 6}}", "service.familiy: unknown key; did you mean"),
            ("{file: x, inferencePool: {name: a}}", "must have exactly one of the keys"),
            ("{inferencePool: llama}", "inferencePool: is the text 'llama'; must be a mapping with name"),
            ("{inferencePool: {}}", "inferencePool.name: is required"),
            ("{inferencePool: {name: Llama}}", "inferencePool.name: is the text 'Llama'; must be a name"),
            ("{inferencePool: {name: a, namespace: a.b}}", "inferencePool.namespace: is the text 'a.b'"),
            ("{inferencepool: {name: a}}", "inferencepool: unknown key; did you mean inferencePool?"),
            ("{pods: {selector: app=x}}", "pods.ports: is required"),
            ("{pods: {selector: app=x, ports: []}}", "pods.ports: is an empty list; must be a list of"),
            ("{pods: {selector: app=x, ports: [0]}}", "pods.ports[0]: is 0"),
            ("{pods: {selector: '', ports: [80]}}", "pods.selector: is the text ''; must be a label"),
            ("{pods: {selector: 'a&b', ports: [80]}}", "pods.selector: is the text 'a&b'"),
        ],
    )
    def test_what_names_no_pods_is_refused(self, endpoints: str, said: str) -> None:
        assert said in complaint(f"pools: [{{name: a, endpoints: {endpoints}}}]")


class TestWhatNeedsARestart:
    CHANGES = """\
listen: 127.0.0.1:1
health: null
metrics: 127.0.0.1:3
log: {level: debug}
drainTimeout: 1s
maxMessageBytes: 1000000
pools: [{name: b, endpoints: {file: x}}]
"""

    def test_only_addresses_and_the_message_limit_do(self) -> None:
        old, new = parse(EXAMPLE, "f"), parse(self.CHANGES, "f")
        assert needing_restart(old, new) == ["listen", "health", "metrics", "maxMessageBytes"]
        assert needing_restart(old, old) == []

    def test_the_rest_is_taken_at_once(self) -> None:
        old, new = parse(EXAMPLE, "f"), parse(self.CHANGES, "f")
        merged = until_restart(old, new)
        assert (merged.listen, merged.health, merged.metrics, merged.max_message_bytes) == (
            old.listen,
            old.health,
            old.metrics,
            old.max_message_bytes,
        )
        assert (merged.pools, merged.log, merged.drain_timeout) == (new.pools, new.log, new.drain_timeout)


class TestTheDocumentation:
    PAGE = ROOT / "docs" / "configuration.md"

    def test_its_key_table_is_that_of_the_code(self) -> None:
        assert key_table() in self.PAGE.read_text(), "write the output of `extproc check --keys` into it"

    @pytest.mark.parametrize("page", ["README.md", "docs/configuration.md", "docs/replay.md"])
    def test_its_examples_are_valid(self, page: str) -> None:
        examples = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
        assert examples
        for example in examples:
            parse(example, page)

    def test_it_lists_every_api_that_is_read(self) -> None:
        section = self.PAGE.read_text().partition("## Which bodies are understood")[2].partition("\n## ")[0]
        listed = re.findall(r"^\| `([a-z-]+)` \| \S", section, flags=re.MULTILINE)
        assert listed == [*(api.name for api in APIS), "raw", "none"]

    def test_every_key_is_read_by_the_router(self) -> None:
        aside = {ROOT / "extproc" / "config.py", ROOT / "extproc" / "commands" / "check.py"}
        code = "\n".join(p.read_text() for p in (ROOT / "extproc").rglob("*.py") if p not in aside)
        assert [key.path for key in keys() if not re.search(rf"\.{key.field}\b", code)] == []

    def test_every_key_says_what_it_means(self) -> None:
        assert [key.path for key in keys() if not key.description] == []


class TestSettingsBesideTheFile:
    POOL = parse(
        "pools: [{name: llama, strategy: RANDOM, slowStart: false, shed: {maxInFlight: 9},"
        " endpoints: {static: ['10.0.0.1:80']},"
        " settingsFrom: {configMap: {name: llama-routing, namespace: llm}}}]",
        "f.yaml",
    ).pools[0]

    def test_are_found_by_name_and_key(self) -> None:
        assert self.POOL.settings_from is not None
        source = self.POOL.settings_from.config_map
        assert (source.name, source.namespace, source.key) == ("llama-routing", "llm", "settings.yaml")

    def test_go_before_those_of_the_file_which_stay_where_nothing_is_said(self) -> None:
        laid = with_settings(self.POOL, "strategy: PREFIX_AWARE\nprefixLength: 4096\nshed: null\n", "map")
        assert (laid.strategy, laid.prefix_length, laid.shed) == ("PREFIX_AWARE", 4096, None)
        assert (laid.name, laid.endpoints, laid.slow_start) == ("llama", self.POOL.endpoints, None)

    @pytest.mark.parametrize("text", ["", "{}", "# nothing yet\n"])
    def test_that_say_nothing_change_nothing(self, text: str) -> None:
        assert with_settings(self.POOL, text, "map") == self.POOL

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("strategy: RANDON", "map:1: strategy: is the text 'RANDON'; must be one of RANDOM, "),
            ("a: 1\nstrategi: RANDOM", "map:2: strategi: unknown key; did you mean strategy?"),
            ("\nbalance: {factor: 0}", "map:2: balance.factor: is 0; must be a number above 1"),
            ("balance: {factr: 2}", "map:1: balance.factr: unknown key; did you mean factor?"),
            ("shed: {}", "map:1: shed.maxInFlight: is required"),
            ("[RANDOM]", "map:1: must be a mapping of keys (strategy, prefixLength, "),
            ("strategy: [", "map:1:12: not valid YAML"),
            ("pools: []", "map:1: pools: unknown key; the keys here are strategy, "),
        ],
    )
    def test_that_cannot_be_used_are_refused_as_in_the_file(self, text: str, said: str) -> None:
        with pytest.raises(ConfigError) as refused:
            with_settings(self.POOL, text, "map")
        assert said in str(refused.value)

    @pytest.mark.parametrize(
        "text",
        [
            "name: other",
            "match: {route: a}",
            "endpoints: {static: ['10.6.6.6:80']}",
            "engineMetrics: {tokenFile: /etc/shadow, scheme: https}",
            "endpointSubset: false",
            "nodeCache: false",
            "settingsFrom: {configMap: {name: x}}",
        ],
    )
    def test_reach_neither_files_nor_other_endpoints(self, text: str) -> None:
        with pytest.raises(ConfigError, match="stands in the router's own configuration alone"):
            with_settings(self.POOL, text, "map")

    def test_are_told_of_every_mistake_at_once(self) -> None:
        with pytest.raises(ConfigError) as refused:
            with_settings(self.POOL, "strategy: X\nname: other\nprefixLength: 1\n", "map")
        assert [problem.path for problem in refused.value.problems] == ["strategy", "name", "prefixLength"]
