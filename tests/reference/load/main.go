// Command load puts the same open load on the instances of any rate limit server that
// scripts/compare knows, and prints what they answered as one line of JSON: how many requests were
// admitted, denied and not answered, in all and in each tenth of a second, and how long answers took.
//
// Requests are due at even intervals whatever the servers do, and go to the instances in turn. A
// latency counts from when its request was due. A request without an answer at the end of its
// time-out has failed.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

// plan is what the command line says.
type plan struct {
	targets  []string
	protocol protocol
	rate     int // requests a second, over all targets
	keys     int // distinct values of the last entry, drawn with weight 1/rank
	start    time.Time
	duration time.Duration
	timeout  time.Duration
	seed     uint64
}

// connecting is what connections may take before the first request is due.
const connecting = 200 * time.Millisecond

func main() {
	plan, err := parse()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(run(plan))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(2)
	}
}

func parse() (plan, error) {
	targets := flag.String("targets", "", "gRPC addresses of the instances, separated by commas")
	name := flag.String("protocol", "envoy", "envoy, gubernator or gubernator-global")
	entry := flag.String("entry", "user_id", "key of the descriptor's entry")
	limit := flag.Int64("limit", 0, "of gubernator, whose requests carry it")
	window := flag.Duration("window", time.Second, "of that limit")
	rate := flag.Int("rate", 1000, "requests a second over all instances")
	keys := flag.Int("keys", 1, "number of values of the entry")
	start := flag.Float64("start", 0, "when to begin, in seconds since 1970; by default at once")
	duration := flag.Duration("duration", 10*time.Second, "how long to send")
	timeout := flag.Duration("timeout", 100*time.Millisecond, "how long to wait for an answer")
	seed := flag.Uint64("seed", 1, "of the draw of keys")
	flag.Parse()
	chosen, err := protocolOf(*name, *entry, *limit, *window)
	switch {
	case err != nil:
		return plan{}, err
	case *targets == "":
		return plan{}, fmt.Errorf("no -targets: name the instances, as in 127.0.0.1:8081,127.0.0.1:8082")
	case *rate < 1 || *keys < 1 || *duration <= 0 || *timeout <= 0:
		return plan{}, fmt.Errorf("-rate, -keys, -duration and -timeout must be above 0")
	}
	begin := time.Now().Add(connecting)
	if *start > 0 {
		begin = time.UnixMicro(int64(*start * 1e6))
	}
	return plan{strings.Split(*targets, ","), chosen, *rate, *keys, begin, *duration, *timeout, *seed}, nil
}
