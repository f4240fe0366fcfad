{{- define "headrace.name" -}}
{{- $name := printf "%s-%s" .Release.Name .Chart.Name }}
{{- if contains .Chart.Name .Release.Name }}{{ $name = .Release.Name }}{{ end }}
{{- $name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "headrace.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- /* What cannot work is refused before anything is created. */}}
{{- define "headrace.check" -}}
{{- if not .Values.apiKeys.existingSecret }}
{{- fail "apiKeys.existingSecret is not set: make a Secret with HEADRACE_API_KEY and HEADRACE_ADMIN_API_KEY and name it here, or everybody may do everything" }}
{{- end }}
{{- if and .Values.ray.enabled (gt (int .Values.fronts) 1) }}
{{- fail (printf "fronts is %d and ray.enabled is true: the head's pod is the only front of a Ray cluster; install the chart twice for two" (int .Values.fronts)) }}
{{- end }}
{{- $fewest := .Values.minReplicas | default 0 | int }}
{{- $upTo := .Values.maxReplicas | default (max 1 .Values.replicas) | int }}
{{- if or (lt (int .Values.replicas) $fewest) (gt (int .Values.replicas) $upTo) }}
{{- fail (printf "replicas is %d, with minReplicas %d and maxReplicas %d: it is the number at the start, between these" (int .Values.replicas) $fewest $upTo) }}
{{- end }}
{{- $most := .Values.maxReplicas | default .Values.replicas | int }}
{{- $places := add 1 .Values.ray.workers | int }}
{{- if and .Values.ray.enabled (gt $most $places) }}
{{- fail (printf "up to %d replicas need as many pods, and there are %d: the head and ray.workers = %d" $most $places (int .Values.ray.workers)) }}
{{- end }}
{{- if and .Values.ray.enabled (lt (semver .Values.ray.version).Minor 52) (eq (semver .Values.ray.version).Major 2) }}
{{- fail (printf "ray.version is %s: token authentication needs 2.52.0" .Values.ray.version) }}
{{- end }}
{{- end }}

{{- define "headrace.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add .Values.shutdownTimeout .Values.preStopSeconds 15 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "headrace.container" -}}
{{ include "headrace.image" . }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{- toYaml .Values.resources | nindent 2 }}
{{- end }}

{{- /* The flags of the front. */}}
{{- define "headrace.args" -}}
{{- range .Values.models }}
- {{ . | quote }}
{{- end }}
- --host=0.0.0.0
- --port=8080
- --replicas={{ .Values.replicas }}
{{- if ne .Values.minReplicas nil }}
- --min={{ .Values.minReplicas }}
{{- end }}
{{- if ne .Values.maxReplicas nil }}
- --max={{ .Values.maxReplicas }}
{{- end }}
- --policy={{ .Values.policy }}
- --threads={{ .Values.threads }}
- --shutdown-timeout={{ .Values.shutdownTimeout }}
{{- if gt (int .Values.fronts) 1 }}
- --fronts={{ .Values.fronts }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "headrace.env" -}}
- name: HOME
  value: /home/headrace
{{- range $variable := list "HEADRACE_API_KEY" "HEADRACE_ADMIN_API_KEY" }}
- name: {{ $variable }}
  valueFrom: {secretKeyRef: {name: {{ $.Values.apiKeys.existingSecret }}, key: {{ $variable }}}}
{{- end }}
{{- with .Values.ledger.existingSecret }}
- name: HEADRACE_LEDGER
  valueFrom: {secretKeyRef: {name: {{ . }}, key: HEADRACE_LEDGER}}
{{- end }}
{{- end }}

{{- /* Ready once the first model is loaded. A start may take long (a download); then a loop without progress is an error. */}}
{{- define "headrace.probes" -}}
startupProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 900
readinessProbe:
  httpGet: {path: /ready, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
lifecycle: # load balancers hear of it first; then SIGTERM lets requests under way end
  preStop:
    exec: {command: [sleep, "{{ .Values.preStopSeconds }}"]}
{{- end }}

{{- define "headrace.mounts" -}}
- {name: home, mountPath: /home/headrace}
- {name: tmp, mountPath: /tmp}
{{- if .Values.modelVolume.existingClaim }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- end }}

{{- define "headrace.volumes" -}}
- name: tmp
  emptyDir: {}
{{- with .Values.modelVolume.existingClaim }}
- name: models
  persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "headrace.home" -}}
- name: home
{{- if and .Values.persistence.enabled (eq (int .Values.fronts) 1) }}
  persistentVolumeClaim: {claimName: {{ include "headrace.name" . }}}
{{- else }}
  emptyDir: {}
{{- end }}
{{- end }}
