package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// tlsFiles are paths of PEM files.
type tlsFiles struct {
	certificate, key, clients string
}

// options returns those of a server that speaks TLS 1.3 only and requires certificates of its
// clients, or none if there is no certificate.
func (f tlsFiles) options() ([]grpc.ServerOption, error) {
	if f.certificate == "" {
		return nil, nil
	}
	identity, err := tls.LoadX509KeyPair(f.certificate, f.key)
	if err != nil {
		return nil, err
	}
	roots, err := os.ReadFile(f.clients)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(roots) {
		return nil, fmt.Errorf("%s: no certificate", f.clients)
	}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{identity},
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config))}, nil
}
