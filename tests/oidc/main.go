// A provider of OpenID Connect for tests: the certified library of zitadel/oidc with the storage and
// the pages of its example, to which this adds groups, and keys that can be replaced.
package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"flag"
	"log"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"sync"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// key is the key that ID tokens are signed with.
type key struct {
	id      string
	private *rsa.PrivateKey
}

func (k key) ID() string                                  { return k.id }
func (k key) SignatureAlgorithm() jose.SignatureAlgorithm { return jose.RS256 }
func (k key) Key() any                                    { return k.private }

// public is its public part, as the page of keys has it.
type public struct{ key }

func (k public) Algorithm() jose.SignatureAlgorithm { return jose.RS256 }
func (k public) Use() string                        { return "sig" }
func (k public) Key() any                           { return &k.private.PublicKey }

// provider has the users of a file, with the groups of each.
type provider struct {
	*storage.Storage
	groups map[string][]string
	mutex  sync.Mutex
	count  int
	key    key
}

// rotate makes another key, and forgets the former one.
func (p *provider) rotate() {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		log.Fatal(err)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.count++
	p.key = key{"key-" + strconv.Itoa(p.count), private}
}

func (p *provider) current() key {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.key
}

func (p *provider) SigningKey(context.Context) (op.SigningKey, error) { return p.current(), nil }

func (p *provider) KeySet(context.Context) ([]op.Key, error) {
	return []op.Key{public{p.current()}}, nil
}

// SetUserinfoFromRequest adds the groups to an ID token. The name is at the userinfo endpoint.
func (p *provider) SetUserinfoFromRequest(
	ctx context.Context, info *oidc.UserInfo, token op.IDTokenRequest, scopes []string,
) error {
	info.AppendClaims("groups", p.groups[token.GetSubject()])
	return p.Storage.SetUserinfoFromRequest(ctx, info, token, scopes)
}

func main() {
	port := flag.String("port", "", "port of loopback")
	users := flag.String("users", "", "file of users, as JSON")
	redirect := flag.String("redirect", "", "redirect_uri of the client 'limits'")
	secret := flag.String("secret", "", "secret of the client")
	flag.Parse()
	text, err := os.ReadFile(*users)
	if err != nil {
		log.Fatal(err)
	}
	var groups map[string]struct{ Groups []string }
	if err := json.Unmarshal(text, &groups); err != nil {
		log.Fatal(err)
	}
	store, err := storage.StoreFromFile(*users)
	if err != nil {
		log.Fatal(err)
	}
	storage.RegisterClients(storage.WebClient("limits", *secret, *redirect))
	p := &provider{Storage: storage.NewStorage(store), groups: map[string][]string{}}
	for id, user := range groups {
		p.groups[id] = user.Groups
	}
	p.rotate()
	address := "127.0.0.1:" + *port
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	mux := http.NewServeMux()
	mux.HandleFunc("/rotate", func(http.ResponseWriter, *http.Request) { p.rotate() })
	mux.Handle("/", exampleop.SetupServer("http://"+address, p, logger, false))
	log.Fatal(http.ListenAndServe(address, mux))
}
