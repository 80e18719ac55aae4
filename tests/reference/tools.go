//go:build tools

// Package tools names the programs, so that `go mod tidy` keeps their modules: the reference, and the
// statsd exporter that one of its integration scripts asks.
package tools

import (
	_ "github.com/envoyproxy/ratelimit/src/service_cmd"
	_ "github.com/prometheus/statsd_exporter"
)
