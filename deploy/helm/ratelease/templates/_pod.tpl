{{/* The pod, the same in a Deployment and in a DaemonSet. */}}
{{- define "ratelease.pod" -}}
metadata:
  labels:
    {{- include "ratelease.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "ratelease.name" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65534
    runAsGroup: 65534
    fsGroup: 65534
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: ratelease
      image: {{ include "ratelease.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [/bin/ratelimit]
      env:
        {{- include "ratelease.env" . | nindent 8 }}
      ports:
        - {name: http, containerPort: 8080}
        - {name: grpc, containerPort: 8081}
        - {name: rl-metrics, containerPort: 19001}
      # No probe depends on Redis: a pod answers by its rules' failure modes without it.
      startupProbe:
        httpGet: {path: /livez, port: http}
        periodSeconds: 1
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /livez, port: http}
        periodSeconds: 10
        timeoutSeconds: 2
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
        timeoutSeconds: 2
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      {{- with include "ratelease.mounts" . | trim }}
      volumeMounts:
        {{- . | nindent 8 }}
      {{- end }}
  {{- with include "ratelease.volumes" . | trim }}
  volumes:
    {{- . | nindent 4 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if and (eq .Values.kind "Deployment") .Values.topologySpread.enabled }}
  topologySpreadConstraints:
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: {{ $.Values.topologySpread.whenUnsatisfiable }}
      labelSelector:
        matchLabels:
          {{- include "ratelease.selector" $ | nindent 10 }}
    {{- end }}
  {{- end }}
{{- end -}}

{{- define "ratelease.mounts" -}}
- {name: state, mountPath: /state}
{{- if not .Values.rules.xds.server }}
- {name: rules, mountPath: /data/ratelimit/config, readOnly: true}
{{- end }}
{{- if .Values.rules.xds.tlsSecret }}
- {name: xds-certs, mountPath: /xds-certs, readOnly: true}
{{- end }}
{{- if .Values.redis.auth.secret }}
- {name: redis-auth, mountPath: /redis-auth, readOnly: true}
{{- end }}
{{- if .Values.redis.tls.secret }}
- {name: redis-certs, mountPath: /redis-certs, readOnly: true}
{{- end }}
{{- if .Values.tls.secret }}
- {name: certs, mountPath: /certs, readOnly: true}
{{- end }}
{{- end -}}

{{- define "ratelease.volumes" -}}
# The last good rules, for a container that is restarted: it outlives that.
- name: state
  emptyDir: {sizeLimit: 256Mi}
{{- if not .Values.rules.xds.server }}
- name: rules
  configMap: {name: {{ include "ratelease.rulesConfigMap" . | quote }}}
{{- end }}
{{- if .Values.rules.xds.tlsSecret }}
- name: xds-certs
  secret: {secretName: {{ .Values.rules.xds.tlsSecret | quote }}, defaultMode: 0440}
{{- end }}
{{- with .Values.redis.auth }}
{{- if .secret }}
- name: redis-auth
  secret:
    secretName: {{ .secret | quote }}
    defaultMode: 0440
    items: [{key: {{ .key | quote }}, path: auth}]
{{- end }}
{{- end }}
{{- if .Values.redis.tls.secret }}
- name: redis-certs
  secret: {secretName: {{ .Values.redis.tls.secret | quote }}, defaultMode: 0440}
{{- end }}
{{- if .Values.tls.secret }}
- name: certs
  secret: {secretName: {{ .Values.tls.secret | quote }}, defaultMode: 0440}
{{- end }}
{{- end -}}
