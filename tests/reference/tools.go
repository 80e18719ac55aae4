//go:build tools

// Package tools names the program, so that `go mod tidy` keeps its module.
package tools

import _ "github.com/envoyproxy/ratelimit/src/service_cmd"
