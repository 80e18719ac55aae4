// An ADS server of rate limit rules, made of go-control-plane's snapshot cache and server. A test
// writes commands to its stdin and reads events from its stdout, each a line of JSON. It ends when
// its stdin does. With the argument kstatus it judges objects of Kubernetes instead.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
)

// command sets the snapshot of a node.
type command struct {
	Node    string `json:"node"`
	Version string `json:"version"`
	// The JSON form of RateLimitConfig.
	Resources []json.RawMessage `json:"resources"`
}

// maxCommandBytes bounds a line of stdin.
const maxCommandBytes = 64 << 20

func main() {
	log.SetFlags(0)
	log.SetPrefix("control_plane: ")
	if len(os.Args) > 1 && os.Args[1] == "kstatus" {
		if err := kstatus(); err != nil {
			log.Fatal(err)
		}
		return
	}
	listen := flag.String("listen", "127.0.0.1:0", "the address to listen on")
	var files tlsFiles
	flag.StringVar(&files.certificate, "cert", "", "the server's certificate; without it, no TLS")
	flag.StringVar(&files.key, "key", "", "its key")
	flag.StringVar(&files.clients, "clients", "", "the CA that clients' certificates are signed by")
	flag.Parse()
	options, err := files.options()
	if err == nil {
		err = run(*listen, options)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run serves until stdin ends.
func run(address string, options []grpc.ServerOption) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	snapshots := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	events := newEvents(os.Stdout)
	grpcServer := grpc.NewServer(options...)
	discovery.RegisterAggregatedDiscoveryServiceServer(
		grpcServer, server.NewServer(context.Background(), snapshots, events.callbacks()))
	go func() { log.Fatal(grpcServer.Serve(listener)) }()
	events.print(event{Event: "listening", Address: listener.Addr().String()})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, maxCommandBytes)
	for lines.Scan() {
		if err := apply(snapshots, lines.Bytes()); err != nil {
			return fmt.Errorf("%q: %w", lines.Text(), err)
		}
	}
	return lines.Err()
}

// apply runs the command of one line.
func apply(snapshots cache.SnapshotCache, line []byte) error {
	var command command
	if err := json.Unmarshal(line, &command); err != nil {
		return err
	}
	resources := make([]types.Resource, 0, len(command.Resources))
	for _, text := range command.Resources {
		config := new(ratelimit.RateLimitConfig)
		if err := protojson.Unmarshal(text, config); err != nil {
			return err
		}
		resources = append(resources, config)
	}
	set := map[resource.Type][]types.Resource{resource.RateLimitConfigType: resources}
	snapshot, err := cache.NewSnapshot(command.Version, set)
	if err != nil {
		return err
	}
	return snapshots.SetSnapshot(context.Background(), command.Node, snapshot)
}
