"""A real Kubernetes control plane on one machine, and an agent that runs its pods as processes.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are the released programs, built from their
modules (tools/kubernetes, tools/queue). What is imitated is the kubelet: `agent.py`.
"""
