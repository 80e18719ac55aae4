package main

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sort"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// slot is the span of requests that the report counts together.
const slot = 100 * time.Millisecond

type verdict int

const (
	failed verdict = iota
	admitted
	denied
)

// outcome is what became of one request.
type outcome struct {
	verdict verdict
	latency time.Duration
	reason  string // of a failure
	owner   string
}

// counts are the figures of the report, of all requests or of those of a slot.
type counts struct {
	AtMs     int64 `json:"at_ms"`
	Requests int   `json:"requests"`
	Admitted int   `json:"admitted"`
	Denied   int   `json:"denied"`
	Failed   int   `json:"failed"`
	P50      int64 `json:"p50_us"`
	P99      int64 `json:"p99_us"`
}

type report struct {
	counts
	Reasons map[string]int `json:"reasons"`
	Owners  []string       `json:"owners"`
	Slots   []counts       `json:"slots"`
}

// raw has grpc carry messages that are bytes already.
type raw struct{}

func (raw) Name() string                        { return "proto" }
func (raw) Marshal(message any) ([]byte, error) { return message.([]byte), nil }
func (raw) Unmarshal(data []byte, into any) error {
	*into.(*[]byte) = data
	return nil
}

// run sends what the plan says, one request after another, and reports when all have ended.
func run(plan plan) report {
	connections := connect(plan.targets)
	requests := make([][]byte, plan.keys)
	for key := range requests {
		requests[key] = plan.protocol.request(key)
	}
	draw := zipf(plan.keys, plan.seed)
	outcomes := make([]outcome, int(plan.duration.Seconds()*float64(plan.rate)))
	runtime.LockOSThread() // it sleeps in the kernel, whose timers are finer than the runtime's
	var under sync.WaitGroup
	for at := range outcomes {
		due := plan.start.Add(time.Duration(at) * time.Second / time.Duration(plan.rate))
		sleepUntil(due)
		request, connection := requests[draw()], connections[at%len(connections)]
		under.Go(func() { outcomes[at] = ask(plan, connection, request, due) })
	}
	runtime.UnlockOSThread()
	under.Wait()
	return reportOf(plan, outcomes)
}

func connect(targets []string) []*grpc.ClientConn {
	var connections []*grpc.ClientConn
	for _, target := range targets {
		connection, err := grpc.NewClient("passthrough:///"+target,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
		if err != nil {
			panic(err) // the options are constant
		}
		connection.Connect()
		connections = append(connections, connection)
	}
	return connections
}

func sleepUntil(due time.Time) {
	for left := time.Until(due); left > 0; left = time.Until(due) {
		span := syscall.NsecToTimespec(int64(left))
		_ = syscall.Nanosleep(&span, nil) // a signal ends it early
	}
}

func ask(plan plan, connection *grpc.ClientConn, request []byte, due time.Time) outcome {
	within, cancel := context.WithTimeout(context.Background(), plan.timeout)
	defer cancel()
	var message []byte
	err := connection.Invoke(within, plan.protocol.method, request, &message)
	latency := time.Since(due)
	if err != nil {
		return outcome{latency: latency, reason: status.Code(err).String()}
	}
	answer, err := plan.protocol.answer(message)
	switch {
	case err != nil:
		return outcome{latency: latency, reason: err.Error()}
	case answer.admitted:
		return outcome{admitted, latency, "", answer.owner}
	}
	return outcome{denied, latency, "", answer.owner}
}

// zipf draws keys, the k-th of which has weight 1/k.
func zipf(keys int, seed uint64) func() int {
	sums, sum := make([]float64, keys), 0.0
	for at := range sums {
		sum += 1 / float64(at+1)
		sums[at] = sum
	}
	random := rand.New(rand.NewPCG(seed, 0))
	return func() int { return min(sort.SearchFloat64s(sums, random.Float64()*sum), keys-1) }
}

func reportOf(plan plan, outcomes []outcome) report {
	made := report{counts: count(0, outcomes), Reasons: map[string]int{}, Owners: []string{}}
	for _, one := range outcomes {
		if one.reason != "" {
			made.Reasons[one.reason]++
		}
		if one.owner != "" && !slices.Contains(made.Owners, one.owner) {
			made.Owners = append(made.Owners, one.owner)
		}
	}
	each := max(1, int(slot.Seconds()*float64(plan.rate)))
	for at := 0; at < len(outcomes); at += each {
		part := outcomes[at:min(at+each, len(outcomes))]
		made.Slots = append(made.Slots, count(int64(at)*1000/int64(plan.rate), part))
	}
	return made
}

func count(at int64, outcomes []outcome) counts {
	made := counts{AtMs: at, Requests: len(outcomes)}
	latencies := make([]int64, 0, len(outcomes))
	for _, one := range outcomes {
		latencies = append(latencies, one.latency.Microseconds())
		switch one.verdict {
		case admitted:
			made.Admitted++
		case denied:
			made.Denied++
		default:
			made.Failed++
		}
	}
	slices.Sort(latencies)
	if last := len(latencies) - 1; last >= 0 {
		made.P50, made.P99 = latencies[last/2], latencies[last*99/100]
	}
	return made
}
