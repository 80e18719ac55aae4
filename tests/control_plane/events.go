package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// event is a line of stdout. Fields that an event does not have are left out.
type event struct {
	// listening, open, closed, request or response.
	Event   string `json:"event"`
	Address string `json:"address,omitempty"`
	Stream  int64  `json:"stream,omitempty"`
	// The version of TLS and the name in the client's certificate.
	TLS    string `json:"tls,omitempty"`
	Client string `json:"client,omitempty"`
	// Of requests and responses. The node is in the first request of a stream only.
	Node    string `json:"node,omitempty"`
	Type    string `json:"type,omitempty"`
	Version string `json:"version,omitempty"`
	Nonce   string `json:"nonce,omitempty"`
	// The error_detail of a request.
	Code    int32  `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// events prints what happens on all streams.
type events struct {
	mutex   sync.Mutex
	encoder *json.Encoder
}

func newEvents(output io.Writer) *events {
	return &events{encoder: json.NewEncoder(output)}
}

func (e *events) print(event event) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if err := e.encoder.Encode(event); err != nil {
		log.Fatal(err)
	}
}

// callbacks prints the events of go-control-plane's server.
func (e *events) callbacks() server.Callbacks {
	return server.CallbackFuncs{
		StreamOpenFunc: func(ctx context.Context, stream int64, _ string) error {
			version, client := peerOf(ctx)
			e.print(event{Event: "open", Stream: stream, TLS: version, Client: client})
			return nil
		},
		StreamClosedFunc: func(stream int64, _ *core.Node) {
			e.print(event{Event: "closed", Stream: stream})
		},
		StreamRequestFunc: func(stream int64, request *discovery.DiscoveryRequest) error {
			e.print(event{
				Event: "request", Stream: stream, Node: request.GetNode().GetId(),
				Type: request.GetTypeUrl(), Version: request.GetVersionInfo(),
				Nonce: request.GetResponseNonce(), Code: request.GetErrorDetail().GetCode(),
				Message: request.GetErrorDetail().GetMessage(),
			})
			return nil
		},
		StreamResponseFunc: func(_ context.Context, stream int64,
			_ *discovery.DiscoveryRequest, response *discovery.DiscoveryResponse) {
			e.print(event{
				Event: "response", Stream: stream, Type: response.GetTypeUrl(),
				Version: response.GetVersionInfo(), Nonce: response.GetNonce(),
			})
		},
	}
}

// peerOf returns the version of TLS and the name in the client's certificate; nothing without
// TLS.
func peerOf(ctx context.Context) (version, client string) {
	connection, _ := peer.FromContext(ctx)
	info, isTLS := connection.AuthInfo.(credentials.TLSInfo)
	if !isTLS {
		return "", ""
	}
	if certificates := info.State.PeerCertificates; len(certificates) > 0 {
		client = certificates[0].Subject.CommonName
	}
	return tls.VersionName(info.State.Version), client
}
