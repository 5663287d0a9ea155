"""kubectl, and the namespaces that manifests/ speaks of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.apiserver import cluster
from tests.apiserver.attachment.kubectl import ROOT, Kubectl
from tests.apiserver.cluster import ADMIN, ApiServer


@pytest.fixture(scope="session")
def kubectl(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """As the administrator."""
    binary = cluster.binary("kubectl")
    assert binary is not None
    made = Kubectl(Path(binary), server.kubeconfig(ADMIN), tmp_path_factory.mktemp("kubectl"))
    made.namespace("llm")
    for room in ("base/router", "operator/controller", "operator/agent"):
        made("apply", "--server-side", "-f", str(ROOT / "manifests" / room / "namespace.yaml"))
    return made
