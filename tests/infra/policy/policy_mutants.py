"""Of each rule, changes to one property of what stacks declare that break it, and it alone."""

from typing import Any

from infra.policy import Resource

BUCKET, MEMBER = "gcp:storage/bucket:Bucket", "gcp:projects/iAMMember:IAMMember"
VM, CLUSTER, POOL = "gcp:tpu/v2Vm:V2Vm", "gcp:container/cluster:Cluster", "gcp:container/nodePool:NodePool"
MACHINE, CONTROLLER = "gcp:compute/instance:Instance", "slurm-dev-controller"
FIREWALL, SUBNET = "gcp:compute/firewall:Firewall", "gcp:compute/subnetwork:Subnetwork"
ALERT, METRIC = "gcp:monitoring/alertPolicy:AlertPolicy", "gcp:logging/metric:Metric"
BUDGET, CHANNEL = "gcp:billing/budget:Budget", "gcp:monitoring/notificationChannel:NotificationChannel"
NAT, KEY = "gcp:compute/routerNat:RouterNat", "gcp:kms/cryptoKey:CryptoKey"
OBJECT, TRIGGER = "gcp:storage/bucketObject:BucketObject", "gcp:eventarc/trigger:Trigger"
FUNCTION = "gcp:cloudfunctionsv2/function:Function"
SCRATCH, RUNS = "my-project-raw-scratch", "tpu-pipeline-run@my-project.iam.gserviceaccount.com"
DASHBOARD, JOB = "gcp:monitoring/dashboard:Dashboard", "gcp:cloudscheduler/job:Job"
HOSTS, ZIP = "tpu-training@my-project.iam.gserviceaccount.com", "buildConfig.source.storageSource.object"
COLDER = {"action": {"type": "SetStorageClass", "storageClass": "NEARLINE"}, "condition": {"age": 90}}
UNFINISHED = {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}
SPENT = {"thresholdPercent": 1.0, "spendBasis": "CURRENT_SPEND"}
CHECKPOINTS, STEPS = "my-project-checkpoints", "my-project-checkpoints-steps"
BUCKET_MEMBER = "gcp:storage/bucketIAMMember:BucketIAMMember"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
KUEUE = "Deployment-kueue-system-kueue-controller-manager"
GONE = object()
_SOURCES = 'resource.name.startsWith("projects/_/buckets/gcf-v2-sources-")'

MUTANTS: list[tuple[str, str, str, str, Any]] = [
    ("B01", BUCKET, CHECKPOINTS, "uniformBucketLevelAccess", GONE),
    ("B02", BUCKET, CHECKPOINTS, "publicAccessPrevention", "inherited"),
    ("B03", BUCKET_MEMBER, "tpu-training-steps-objectUser", "member", "allUsers"),
    ("B07", BUCKET, CHECKPOINTS, "forceDestroy", True),
    ("B07", BUCKET, CHECKPOINTS, "protect", False),
    ("B08", BUCKET, CHECKPOINTS, "lifecycleRules", []),
    ("B09", BUCKET, CHECKPOINTS, "cors", [{"origins": ["https://example.com", "*"], "methods": ["GET"]}]),
    ("B10", BUCKET, CHECKPOINTS, "lifecycleRules", [UNFINISHED, COLDER]),
    ("B10", BUCKET, STEPS, "lifecycleRules", [UNFINISHED, COLDER]),
    ("PL10", BUCKET, STEPS, "softDeletePolicy.retentionDurationSeconds", 604800),
    ("PL10", BUCKET, STEPS, "versioning.enabled", True),
    ("PL10", BUCKET, SCRATCH, "softDeletePolicy.retentionDurationSeconds", 604800),
    ("PL17", BUCKET, SCRATCH, "lifecycleRules", []),
    ("B03", "gcp:cloudrunv2/serviceIamMember:ServiceIamMember", "invoker", "member", "allUsers"),
    ("PL3", OBJECT, "source", "name", "function.zip"),
    ("PL5", TRIGGER, "tpu-pipeline", "serviceAccount", RUNS),
    ("PL16", FUNCTION, "tpu-pipeline", "serviceConfig.ingressSettings", "ALLOW_ALL"),
    ("PL16", FUNCTION, "tpu-pipeline", "buildConfig.serviceAccount", GONE),
    ("PL8", METRIC, "bucket-public", "labelExtractors.bucket", "EXTRACT(insertId)"),
    ("PL8", METRIC, "batches-failed", "labelExtractors.batch", "EXTRACT(protoPayload.status.message)"),
    ("PL8", METRIC, "boot-failed", "labelExtractors.stage", "EXTRACT(textPayload)"),
    ("PL12", BUDGET, "budget", "thresholdRules", [SPENT]),
    ("PL12", BUDGET, "budget", "thresholdRules", [{"thresholdPercent": 0.5}]),
    ("PL12", BUDGET, "budget", "thresholdRules", [{"thresholdPercent": 0.5}, SPENT]),
    ("PL12", BUDGET, "budget", "budgetFilter.projects", GONE),
    ("PL13", TRIGGER, "tpu-pipeline", "location", "us-central1"),
    ("PL13", JOB, "tpu-pipeline", "region", "us-central1"),
    ("PL13", FUNCTION, "tpu-pipeline", "location", GONE),
    ("PL14", FUNCTION, "tpu-pipeline", "buildConfig.source.storageSource.bucket", f"gs://{SCRATCH}"),
    ("I01", MEMBER, "tpu-training-logWriter", "role", "roles/editor"),
    ("I02", MEMBER, "tpu-training-logWriter", "role", "roles/tpu.admin"),
    ("I03", MEMBER, "tpu-training-logWriter", "role", "roles/iam.serviceAccountUser"),
    ("I05", VM, "train", "serviceAccount.email", "1-compute@developer.gserviceaccount.com"),
    ("I08", MEMBER, "tpu-training-logWriter", "role", "roles/storage.objectViewer"),
    ("I08", MEMBER, "tpu-pipeline-build-objectViewer", "role", "roles/storage.objectUser"),
    *(
        ("I08", MEMBER, "tpu-pipeline-build-objectViewer", "condition", {"expression": limit})
        for limit in ("", 'resource.name.startsWith("projects/_/buckets/gcf")', f"{_SOURCES} || true")
    ),
    *(
        ("I13", MEMBER, who, "role", f"roles/{role}")
        for who in ("tpu-gke-nodes-defaultNodeServiceAccount", "cloud-tpu-sa-logWriter")
        for role in ("dataproc.worker", "secretmanager.secretAccessor", "doesnotexist")
    ),
    ("I13", MEMBER, "tpu-pipeline-spark-worker", "role", "roles/dataproc.editor"),
    ("I10", KEY, "pulumi-secrets", "rotationPeriod", "31536000s"),
    ("I10", KEY, "pulumi-secrets", "protect", False),
    ("I11", VM, "train", "serviceAccount.email", RUNS),
    ("I11", POOL, "cpu", "nodeConfig.serviceAccount", HOSTS),
    ("I11", FUNCTION, "tpu-pipeline", "serviceConfig.serviceAccountEmail", HOSTS),
    ("I11", FUNCTION, "tpu-pipeline", "buildConfig.serviceAccount", f"projects/-/serviceAccounts/{RUNS}"),
    ("I11", JOB, "tpu-pipeline", "httpTarget.oidcToken.serviceAccountEmail", RUNS),
    ("PL18", FUNCTION, "tpu-pipeline", ZIP, "functions/orchestrator.zip"),
    ("PL18", FUNCTION, "tpu-pipeline", "buildConfig.source.storageSource.bucket", CHECKPOINTS),
    ("PL19", FUNCTION, "tpu-pipeline", "buildConfig.runtime", "python39"),
    ("PL20", ALERT, "boot-failed", "conditions.0.conditionThreshold.filter", 'resource.type="generic_node"'),
    ("PL20", ALERT, "boot-failed", "conditions.0.conditionThreshold.comparison", "COMPARISON_EQ"),
    ("PL21", METRIC, "sweeps-failed", "filter", 'resource.type="scheduler_job" AND severity>=ERROR'),
    ("PL21", METRIC, "sweeps-failed", "labelExtractors.job", "EXTRACT(resource.labels.job)"),
    ("PL21", ALERT, "boot-failed", "conditions.0.conditionThreshold.aggregations.0.groupByFields",
     ["resource.label.node_name"]),
    ("N01", "gcp:compute/network:Network", "tpu-training", "autoCreateSubnetworks", GONE),
    ("N02", SUBNET, "tpu-training-us-east5", "logConfig", GONE),
    ("N03", SUBNET, "tpu-training-us-east5", "privateIpGoogleAccess", GONE),
    ("N04", FIREWALL, "tpu-training-slice-internal", "sourceRanges", ["0.0.0.0/0"]),
    ("N05", FIREWALL, "tpu-training-ssh", "sourceRanges", ["203.0.113.0/24"]),
    ("N05", FIREWALL, "tpu-training-ssh", "sourceRanges", ["35.235.240.0/20", "203.0.113.0/24"]),
    ("N06", FIREWALL, "tpu-training-ssh", "targetTags", GONE),
    ("N06", FIREWALL, "tpu-training-ssh", "direction", GONE),
    ("N07", NAT, "tpu-training-us-east5-nat", "natIpAllocateOption", "MANUAL_ONLY"),
    ("N07", NAT, "tpu-training-us-east5-nat", "logConfig.enable", False),
    ("T01", VM, "train", "networkConfig.enableExternalIps", True),
    ("T01", VM, "train", "networkConfig.enableExternalIps", GONE),
    ("T02", VM, "train", "serviceAccount", GONE),
    ("T04", VM, "train", "metadata.enable-oslogin", "FALSE"),
    ("T05", VM, "train", "metadata.block-project-ssh-keys", GONE),
    ("T06", VM, "train", "metadata.serial-port-enable", "TRUE"),
    ("T07", VM, "train", "networkConfig.canIpForward", True),
    ("T08", VM, "train", "metadata.tpu-note", "password=correcthorsebattery"),
    ("T08", VM, "train", "metadata.tpu-note", "ghp_" + "a" * 36),
    ("T02", MACHINE, CONTROLLER, "serviceAccount", GONE),
    ("T04", MACHINE, CONTROLLER, "metadata.enable-oslogin", "FALSE"),
    ("T05", MACHINE, CONTROLLER, "metadata.block-project-ssh-keys", GONE),
    ("T06", MACHINE, CONTROLLER, "metadata.serial-port-enable", "TRUE"),
    ("T07", MACHINE, CONTROLLER, "canIpForward", True),
    ("T08", MACHINE, CONTROLLER, "metadata.slurm-note", "password=correcthorsebattery"),
    ("T12", MACHINE, CONTROLLER, "networkInterfaces.0.accessConfigs", [{}]),
    ("T13", MACHINE, CONTROLLER, "shieldedInstanceConfig.enableSecureBoot", False),
    ("T13", MACHINE, CONTROLLER, "shieldedInstanceConfig", GONE),
    ("T14", "gcp:compute/disk:Disk", "slurm-dev-state", "protect", False),
    ("T09", VM, "train", "dataDisks.0.mode", "READ_WRITE"),
    ("T10", VM, "train", "runtimeVersion", "tpu-ubuntu2204-base"),
    ("K01", CLUSTER, "tpu", "privateClusterConfig.enablePrivateNodes", False),
    ("K01", CLUSTER, "tpu", "controlPlaneEndpointsConfig.ipEndpointsConfig.enabled", True),
    ("K02", CLUSTER, "tpu", "workloadIdentityConfig", GONE),
    ("K03", POOL, "cpu", "nodeConfig.shieldedInstanceConfig.enableSecureBoot", False),
    ("K04", CLUSTER, "tpu", "releaseChannel", GONE),
    ("K05", CLUSTER, "tpu", "datapathProvider", "LEGACY_DATAPATH"),
    ("K06", CLUSTER, "tpu", "enableLegacyAbac", True),
    ("K07", POOL, "cpu", "nodeConfig.serviceAccount", GONE),
    ("K10", DEPLOYMENT, KUEUE, "spec.template.spec.hostNetwork", True),
    ("K11", POOL, "cpu", "nodeConfig.workloadMetadataConfig", GONE),
    ("K12", POOL, "cpu", "management.autoRepair", False),
    ("PL6", ALERT, "boot-failed", "notificationChannels", []),
    ("PL6", ALERT, "boot-failed", "documentation", GONE),
    ("PL6", ALERT, "boot-failed", "severity", GONE),
    ("PL8", METRIC, "boot-failed", "labelExtractors.node", "EXTRACT(insertId)"),
    ("PL8", METRIC, "boot-failed", "labelExtractors", {"a": "x", "b": "x", "c": "x", "d": "x"}),
    ("PL12", BUDGET, "budget", "thresholdRules", [{"thresholdPercent": 1.0}]),
    ("PL15", CHANNEL, "hook", "labels.url", "http://hooks.example.com/tpu"),
    ("PL15", CHANNEL, "hook", "labels.url", "https://hooks.example.com/tpu?token=x"),
    ("PL15", CHANNEL, "hook", "sensitiveLabels", {"authToken": "x"}),
]  # fmt: skip
FURTHER: list[tuple[str, str, str, str, Any]] = [  # of which checkov isn't asked
    ("PL15", CHANNEL, "hook", "labels.auth_token", "x"),
    ("PL15", CHANNEL, "hook", "labels.password", "x"),
    ("PL15", CHANNEL, "hook", "labels.url", "https://me:pw@hooks.example.com/tpu"),
    ("B03", BUCKET_MEMBER, "tpu-training-steps-objectUser", "member", "allAuthenticatedUsers"),
    ("PL17", BUCKET, SCRATCH, "lifecycleRules", [UNFINISHED]),
    ("PL3", OBJECT, "source", "name", "function-0a1b.zip"),
    ("PL6", ALERT, "boot-failed", "conditions", [{"conditionMonitoringQueryLanguage": {"query": "fetch x"}}]),
    ("PL8", METRIC, "batches-failed", "labelExtractors.batch", "EXTRACT(timestamp)"),
    ("PL12", BUDGET, "budget", "thresholdRules",
     [{"thresholdPercent": 0.5}, {"thresholdPercent": 0.9}, {**SPENT, "spendBasis": "FORECASTED_SPEND"}]),
    ("PL20", ALERT, "boot-failed", "conditions", [{"conditionAbsent": {"filter": ""}}]),
    ("PL20", ALERT, "boot-failed", "conditions.0.conditionThreshold.filter",
     'metric.type="logging.googleapis.com/user/a" OR metric.type="logging.googleapis.com/user/b"'),
    ("I01", MEMBER, "tpu-training-logWriter", "role", "roles/owner"),
    ("I01", MEMBER, "tpu-training-logWriter", "role", "roles/viewer"),
    ("I02", MEMBER, "tpu-training-logWriter", "role", "roles/iam.serviceAccountAdmin"),
    ("I03", MEMBER, "tpu-training-logWriter", "role", "roles/iam.serviceAccountTokenCreator"),
    ("I03", MEMBER, "tpu-training-logWriter", "role", "roles/iam.workloadIdentityUser"),
    ("I05", MEMBER, "tpu-training-logWriter", "member", "serviceAccount:p@appspot.gserviceaccount.com"),
    ("I05", POOL, "cpu", "nodeConfig.serviceAccount", "1-compute@developer.gserviceaccount.com"),
    ("I10", KEY, "pulumi-secrets", "rotationPeriod", "7862400s"),
    ("K02", CLUSTER, "tpu", "workloadIdentityConfig.workloadPool", "another.svc.id.goog"),
    ("K03", POOL, "cpu", "nodeConfig.shieldedInstanceConfig.enableIntegrityMonitoring", False),
    ("K06", CLUSTER, "tpu", "masterAuth.clientCertificateConfig.issueClientCertificate", True),
    ("N04", FIREWALL, "tpu-training-slice-internal", "sourceRanges", ["::/0"]),
    ("T02", VM, "train", "serviceAccount.email", ""),
    *(
        ("I11", VM, "train", "serviceAccount.email", f"{who}@my-project.iam.gserviceaccount.com")
        for who in ("cloud-tpu-sa", "tpu-builds")
    ),
    # What a preview can't know counts as absent, and no rule is passed for that.
    ("B07", BUCKET, CHECKPOINTS, "forceDestroy", GONE),
    ("PL10", BUCKET, STEPS, "softDeletePolicy", GONE),
    ("PL5", TRIGGER, "tpu-pipeline", "serviceAccount", GONE),
    ("PL16", FUNCTION, "tpu-pipeline", "serviceConfig.ingressSettings", GONE),
    ("I10", KEY, "pulumi-secrets", "rotationPeriod", GONE),
    ("K01", CLUSTER, "tpu", "privateClusterConfig", GONE),
    ("K01", CLUSTER, "tpu", "controlPlaneEndpointsConfig", GONE),
    ("K03", POOL, "cpu", "nodeConfig.shieldedInstanceConfig", GONE),
    ("K12", POOL, "cpu", "management", GONE),
    ("N07", NAT, "tpu-training-us-east5-nat", "logConfig", GONE),
    ("T09", VM, "train", "dataDisks.0.mode", GONE),
]  # fmt: skip
OF_OTHER_TYPES = [
    ("I04", Resource("gcp:serviceaccount/key:Key", "key", {})),
    ("I07", Resource("gcp:projects/iAMBinding:IAMBinding", "b", {"role": "roles/logging.viewer"})),
    ("PL13", Resource("gcp:vertex/aiTensorboard:AiTensorboard", "curves", {"region": "europe-west4"})),
    ("PL1", Resource("gcp:dataproc/batch:Batch", "batch", {})),
    ("I12", Resource("gcp:cloudfunctionsv2/functionIamMember:FunctionIamMember", "invoker",
                     {"role": "roles/cloudfunctions.invoker", "member": f"serviceAccount:{RUNS}"})),
    ("I04", Resource("gcp:storage/hmacKey:HmacKey", "key", {})),
    *(
        ("I07", Resource(kind, "whole", {}))
        for kind in (
            "gcp:storage/bucketIAMPolicy:BucketIAMPolicy", "gcp:cloudrunv2/serviceIamPolicy:ServiceIamPolicy",
            "gcp:cloudrunv2/serviceIamBinding:ServiceIamBinding",
        )
    ),
    *(
        ("K10", Resource(kind, "pod", {"spec": {"template": {"spec": pod}} if kind == DEPLOYMENT else pod}))
        for kind in (DEPLOYMENT, "kubernetes:core/v1:Pod")
        for pod in (
            {"hostNetwork": True}, {"hostPID": True}, {"hostIPC": True},
            *({key: [{"securityContext": {"privileged": True}}]} for key in ("containers", "initContainers")),
        )
    ),
    ("PL14", Resource("gcp:a/b:C", "c", {"from": [{"bucket": "gs://my-raw"}]})),
    ("T11", Resource("gcp:tpu/v2QueuedResource:V2QueuedResource", "queued", {})),
    ("T15", Resource("gcp:secretmanager/secretVersion:SecretVersion", "key", {"secretData": "k"})),
    ("PL6", Resource("gcp:monitoring/alertPolicy:AlertPolicy", "alert",
                     {"documentation": {"content": "do this"}, "severity": "ERROR"})),
]  # fmt: skip
