{{- define "ratelease.name" -}}
{{- if contains "ratelease" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-ratelease" (.Release.Name | trunc 42 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "ratelease.selector" -}}
app.kubernetes.io/name: ratelease
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "ratelease.labels" -}}
{{ include "ratelease.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "ratelease.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails with a sentence for each group of values that exclude each other. */}}
{{- define "ratelease.check" -}}
{{- if ne .Values.kind "None" -}}
{{- include "ratelease.checkService" . -}}
{{- else if not (or .Values.injector.enabled .Values.control.enabled) -}}
{{- fail "kind: None installs no service; set injector.enabled=true, control.enabled=true, or another kind" -}}
{{- end -}}
{{- with .Values.injector.certManager -}}
{{- if and .issuerRef (not .enabled) -}}
{{- fail "injector.certManager.issuerRef: set injector.certManager.enabled=true, otherwise it is not used" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ratelease.checkService" -}}
{{- $given := 0 -}}
{{- if .Values.rules.files }}{{ $given = add1 $given }}{{ end -}}
{{- if .Values.rules.configMap }}{{ $given = add1 $given }}{{ end -}}
{{- if .Values.rules.xds.server }}{{ $given = add1 $given }}{{ end -}}
{{- if ne (int $given) 1 -}}
{{- fail "rules: set exactly one of rules.files, rules.configMap and rules.xds.server" -}}
{{- end -}}
{{- if and .Values.redis.embedded .Values.redis.url -}}
{{- fail "redis: unset redis.url or redis.embedded; with a Redis, counts are not in the pod's memory" -}}
{{- end -}}
{{- if not (or .Values.redis.embedded .Values.redis.url) -}}
{{- fail "redis.url: set it, or set redis.embedded=true with replicas=1" -}}
{{- end -}}
{{- if contains "@" (toString .Values.redis.url) -}}
{{- fail "redis.url: holds a user or a password, which everybody who may read the pod sees; set redis.auth.secret" -}}
{{- end -}}
{{- if .Values.redis.embedded -}}
{{- if or (ne .Values.kind "Deployment") .Values.autoscaling.enabled (gt (int .Values.replicas) 1) -}}
{{- fail "redis.embedded: several pods would each admit the whole limit; set replicas=1 and kind=Deployment, or set redis.url" -}}
{{- end -}}
{{- end -}}
{{- if and (or .Values.redis.tls.secret .Values.redis.tls.clientCertificate) (not .Values.redis.tls.enabled) -}}
{{- fail "redis.tls: set redis.tls.enabled=true, otherwise Redis is reached in plaintext" -}}
{{- end -}}
{{- if .Values.networkPolicy.enabled -}}
{{- range regexFindAll ":[0-9]+(,|$)" .Values.redis.url -1 -}}
{{- $port := . | trimPrefix ":" | trimSuffix "," | int -}}
{{- $ports := list -}}
{{- range $.Values.networkPolicy.redisPorts }}{{ $ports = append $ports (int .) }}{{ end -}}
{{- if not (has $port $ports) -}}
{{- fail (printf "networkPolicy.redisPorts: add %d, a port of redis.url; otherwise no pod reaches it" $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas: set it to autoscaling.maxReplicas at most" -}}
{{- end -}}
{{- if and .Values.redis.tls.clientCertificate (not .Values.redis.tls.secret) -}}
{{- fail "redis.tls.clientCertificate: set redis.tls.secret, which holds tls.crt and tls.key" -}}
{{- end -}}
{{- if and .Values.tls.clientCertificates (not .Values.tls.secret) -}}
{{- fail "tls.clientCertificates: set tls.secret, which holds tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- if and .Values.tls.clientName (not .Values.tls.clientCertificates) -}}
{{- fail "tls.clientName: set tls.clientCertificates=true, otherwise no client needs a certificate" -}}
{{- end -}}
{{- end -}}

{{- define "ratelease.rulesConfigMap" -}}
{{- .Values.rules.configMap | default (printf "%s-rules" (include "ratelease.name" .)) -}}
{{- end -}}

{{- define "ratelease.injectorName" -}}
{{ include "ratelease.name" . }}-injector
{{- end -}}

{{- define "ratelease.injectorSelector" -}}
app.kubernetes.io/name: ratelease-injector
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "ratelease.injectorLabels" -}}
{{ include "ratelease.injectorSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "ratelease.injectorImage" -}}
{{- with .Values.injector.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ratelease.controlName" -}}
{{ include "ratelease.name" . }}-control
{{- end -}}

{{- define "ratelease.controlSelector" -}}
app.kubernetes.io/name: ratelease-control
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "ratelease.controlLabels" -}}
{{ include "ratelease.controlSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "ratelease.controlImage" -}}
{{- with .Values.control.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ratelease.checkControl" -}}
{{- with .Values.control -}}
{{- if not .database.secret -}}
{{- fail "control.database.secret: set it to the name of a Secret with the URL of PostgreSQL" -}}
{{- end -}}
{{- if and (not .tlsSecret) (not .plaintext) -}}
{{- fail "control.tlsSecret: set it, or set control.plaintext=true; otherwise any client could read the rules" -}}
{{- end -}}
{{- if and .tlsSecret .plaintext -}}
{{- fail "control: unset control.tlsSecret or control.plaintext; with certificates pods use TLS" -}}
{{- end -}}
{{- with .oidc -}}
{{- if and .issuer (not (and .publicUrl .clientId .roles)) -}}
{{- fail "control.oidc: with an issuer set publicUrl, clientId and roles too" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
