package main

import _ "github.com/zitadel/oidc/v3/pkg/op"
import _ "github.com/zitadel/oidc/v3/example/server/exampleop"
import _ "github.com/zitadel/oidc/v3/example/server/storage"
func main() {}
