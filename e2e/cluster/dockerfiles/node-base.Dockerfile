# What kind's own images/base/Dockerfile makes, with its files, but with Debian's runc and CNI plugins: their
# sources are not in the module proxy as programs.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      systemd systemd-sysv \
      conntrack iptables nftables iproute2 ethtool util-linux mount kmod \
      libseccomp2 pigz \
      e2fsprogs \
      bash ca-certificates curl jq procps \
      runc containernetworking-plugins \
    && apt-get clean && rm -rf /var/lib/apt/lists/*
COPY kind/ /
COPY bin/ /usr/local/bin/
COPY containerd.conf /etc/systemd/system/containerd.service.d/10-nested.conf
RUN chmod -R a+rX /kind /etc/containerd /etc/systemd/system /etc/sysctl.d /etc/default \
    && chmod 0755 /kind/bin/* /usr/local/bin/* \
    && find /lib/systemd/system/sysinit.target.wants/ -name systemd-tmpfiles-setup.service -delete \
    && rm -f /lib/systemd/system/multi-user.target.wants/* \
      /etc/systemd/system/*.wants/* \
      /lib/systemd/system/local-fs.target.wants/* \
      /lib/systemd/system/sockets.target.wants/*udev* \
      /lib/systemd/system/sockets.target.wants/*initctl* \
      /lib/systemd/system/basic.target.wants/* \
    && echo ReadKMsg=no >> /etc/systemd/journald.conf \
    && systemctl enable kubelet.service containerd.service undo-mount-hacks.service \
    && systemctl mask systemd-binfmt.service \
    && sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' /etc/containerd/config.toml \
    && mkdir -p /etc/kubernetes/manifests /opt/cni/bin /kind/manifests /kind/images \
    && for plugin in host-local loopback ptp portmap; do ln -s /usr/lib/cni/$plugin /opt/cni/bin/$plugin; done \
    && ctr oci spec \
      | jq '.hooks.createContainer[.hooks.createContainer | length] |= . + {"path": "/kind/bin/mount-product-files.sh"} | del(.process.rlimits)' \
      > /etc/containerd/cri-base.json
ENV container=docker
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]
