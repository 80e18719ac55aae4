{{/* The environment of the container: names as in docs/settings-list.md. */}}
{{- define "ratelease.env" -}}
- {name: LOG_LEVEL, value: {{ .Values.logLevel | quote }}}
- {name: USE_PROMETHEUS, value: "true"}
- {name: PROMETHEUS_ADDR, value: ":19001"}
{{- if .Values.rules.xds.server }}
- {name: CONFIG_TYPE, value: GRPC_XDS_SOTW}
- {name: CONFIG_GRPC_XDS_SERVER_URL, value: {{ .Values.rules.xds.server | quote }}}
{{- if .Values.rules.xds.nodeId }}
- {name: CONFIG_GRPC_XDS_NODE_ID, value: {{ .Values.rules.xds.nodeId | quote }}}
{{- else if not (hasKey .Values.env "CONFIG_GRPC_XDS_NODE_ID") }}
- name: CONFIG_GRPC_XDS_NODE_ID
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}
{{- if .Values.rules.xds.ratelease }}
- {name: CONFIG_GRPC_XDS_RATELEASE, value: "true"}
{{- end }}
{{- if .Values.rules.xds.tlsSecret }}
- {name: CONFIG_GRPC_XDS_SERVER_USE_TLS, value: "true"}
- {name: CONFIG_GRPC_XDS_SERVER_TLS_CACERT, value: /xds-certs/ca.crt}
- {name: CONFIG_GRPC_XDS_CLIENT_TLS_CERT, value: /xds-certs/tls.crt}
- {name: CONFIG_GRPC_XDS_CLIENT_TLS_KEY, value: /xds-certs/tls.key}
{{- end }}
{{- else }}
- {name: RUNTIME_ROOT, value: /data}
- {name: RUNTIME_SUBDIRECTORY, value: ratelimit}
- {name: RUNTIME_IGNOREDOTFILES, value: "true"}
- {name: RUNTIME_WATCH_ROOT, value: "false"}
{{- end }}
{{- if not (hasKey .Values.env "RULES_SNAPSHOT") }}
- {name: RULES_SNAPSHOT, value: /state/rules}
{{- end }}
{{- if .Values.redis.url }}
- {name: REDIS_URL, value: {{ .Values.redis.url | quote }}}
- {name: REDIS_TYPE, value: {{ .Values.redis.type | quote }}}
{{- end }}
{{- if .Values.redis.auth.secret }}
- {name: REDIS_AUTH_FILE, value: /redis-auth/auth}
{{- end }}
{{- if .Values.redis.tls.enabled }}
- {name: REDIS_TLS, value: "true"}
{{- if and .Values.redis.tls.secret .Values.redis.tls.ca }}
- {name: REDIS_TLS_CACERT, value: /redis-certs/ca.crt}
{{- end }}
{{- if .Values.redis.tls.clientCertificate }}
- {name: REDIS_TLS_CLIENT_CERT, value: /redis-certs/tls.crt}
- {name: REDIS_TLS_CLIENT_KEY, value: /redis-certs/tls.key}
{{- end }}
{{- end }}
{{- if .Values.keySecret.secret }}
- name: KEY_SECRET
  valueFrom:
    secretKeyRef: {name: {{ .Values.keySecret.secret | quote }}, key: {{ .Values.keySecret.key | quote }}}
{{- end }}
{{- if .Values.keySecretPrevious.secret }}
- name: KEY_SECRET_PREVIOUS
  valueFrom:
    secretKeyRef: {name: {{ .Values.keySecretPrevious.secret | quote }}, key: {{ .Values.keySecretPrevious.key | quote }}}
{{- end }}
{{- if .Values.tls.secret }}
- {name: GRPC_SERVER_USE_TLS, value: "true"}
- {name: GRPC_SERVER_TLS_CERT, value: /certs/tls.crt}
- {name: GRPC_SERVER_TLS_KEY, value: /certs/tls.key}
{{- if .Values.tls.clientCertificates }}
- {name: GRPC_CLIENT_TLS_CACERT, value: /certs/ca.crt}
{{- end }}
{{- if .Values.tls.clientName }}
- {name: GRPC_CLIENT_TLS_SAN, value: {{ .Values.tls.clientName | quote }}}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.env }}
- {name: {{ $name }}, value: {{ (kindIs "float64" $value | ternary (int64 $value) $value) | toString | quote }}}
{{- end }}
{{- end -}}
