import asyncio, json
from collections import Counter, defaultdict
from tests.envoy.client import client
from tests.envoy.conftest import *
from tests.envoy.traffic import ask, chat, in_parallel, text
import pytest, time

@pytest.mark.parametrize("system", ["", text(0, 4000)], ids=["alone", "shared"])
@pytest.mark.parametrize("em", [True, False])
async def test_dbg(stacks, system, em):
    prefixes = [text(seed, 2000) for seed in range(1, 51)]
    requests = [(prefix, turn) for turn in range(20) for prefix in prefixes]
    async with stacks("one-message", pool={"engineMetrics": em}) as stack, client(stack.url, "HTTP/1.1") as gateway:
        t0=time.time()
        async def served_by(request):
            prefix, turn = request
            reply = await ask(gateway, chat(f"{prefix} question {turn}", system=system))
            return reply.engine
        served = await in_parallel(requests, 8, served_by)
        dt=time.time()-t0
        s = await stack.router.samples("extproc_requests_total")
        engines = defaultdict(Counter)
        for (prefix, _), e in zip(requests, served): engines[prefix][e]+=1
        print("\nDBG", em, bool(system), f"{dt:.1f}s {1000/dt:.0f} rps", {k:v for k,v in s.items() if v}, "moved", sum(len(c)>1 for c in engines.values()), "off", sum(c.total()-c.most_common(1)[0][1] for c in engines.values()), Counter(served))
        offs=[i for i,((p,_),e) in enumerate(zip(requests,served)) if e!=engines[p].most_common(1)[0][0]]
        print("when", offs[:60])
        import urllib.request
        for e in stack.engines[:1]:
            print([l for l in urllib.request.urlopen(f"http://{e.address}/metrics").read().decode().splitlines() if "prefill_time_seconds_sum" in l or "prefill_time_seconds_count" in l or "prompt_tokens" in l and "#" not in l][:8])
