// The Go that builds tests/control_plane where the one on the PATH is older than that needs. Its
// hashes are in go.sum, which `go mod download` checks.
module control_plane/go

go 1.18
