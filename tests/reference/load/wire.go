package main

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// A protocol writes the request for a key, and reads the answer to it. Messages are written and read
// field by field, so that no server's packages are needed.
type protocol struct {
	method  string
	request func(key int) []byte
	answer  func(message []byte) (answer, error)
}

// answer is what a server says of a request.
type answer struct {
	admitted bool
	owner    string // of gubernator: the instance that counts the key, if it is another one
}

func protocolOf(name, entry string, limit int64, window time.Duration) (protocol, error) {
	switch name {
	case "envoy":
		return protocol{
			"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
			func(key int) []byte { return envoyRequest(entry, key) },
			envoyAnswer,
		}, nil
	case "gubernator", "gubernator-global":
		const global = 2
		behavior := uint64(0)
		if name == "gubernator-global" {
			behavior = global
		}
		return protocol{
			"/pb.gubernator.V1/GetRateLimits",
			func(key int) []byte { return gubernatorRequest(entry, key, limit, window, behavior) },
			gubernatorAnswer,
		}, nil
	}
	return protocol{}, fmt.Errorf("-protocol %s: expected envoy, gubernator or gubernator-global", name)
}

func value(key int) string { return fmt.Sprintf("user-%07d", key) }

// envoyRequest: RateLimitRequest{domain = 1, descriptors = 2 {entries = 1 {key = 1, value = 2}}}.
func envoyRequest(entry string, key int) []byte {
	pair := text(text(nil, 1, entry), 2, value(key))
	return bytes(text(nil, 1, "shop"), 2, bytes(nil, 1, pair))
}

// envoyAnswer: RateLimitResponse{overall_code = 1}, of which OVER_LIMIT is 2.
func envoyAnswer(message []byte) (answer, error) {
	const ok, overLimit = 1, 2
	code := uint64(0)
	err := each(message, func(field protowire.Number, number uint64, _ []byte) error {
		if field == 1 {
			code = number
		}
		return nil
	})
	if err == nil && code != ok && code != overLimit {
		err = fmt.Errorf("code %d", code)
	}
	return answer{admitted: code == ok}, err
}

// gubernatorRequest: GetRateLimitsReq{requests = 1 {name = 1, unique_key = 2, hits = 3, limit = 4,
// duration = 5 (ms), behavior = 7}}. The algorithm is 0, a token bucket, which gubernator fills whole
// when its duration is over: a fixed window that begins with its first request.
func gubernatorRequest(entry string, key int, limit int64, window time.Duration, behavior uint64) []byte {
	one := text(text(nil, 1, entry), 2, value(key))
	one = number(one, 3, 1)
	one = number(one, 4, uint64(limit))
	one = number(one, 5, uint64(window.Milliseconds()))
	one = number(one, 7, behavior)
	return bytes(nil, 1, one)
}

// gubernatorAnswer: GetRateLimitsResp{responses = 1 {status = 1, error = 5, metadata = 6}}, whose
// status is 1 over the limit.
func gubernatorAnswer(message []byte) (answer, error) {
	status, fault, owner := uint64(0), "", ""
	err := each(message, func(_ protowire.Number, _ uint64, response []byte) error {
		return each(response, func(field protowire.Number, number uint64, data []byte) error {
			switch field {
			case 1:
				status = number
			case 5:
				fault = string(data)
			case 6:
				return each(data, func(field protowire.Number, _ uint64, data []byte) error {
					if field == 2 {
						owner = string(data)
					}
					return nil
				})
			}
			return nil
		})
	})
	if err == nil && fault != "" {
		err = fmt.Errorf("an error in the answer")
	}
	return answer{status == 0, owner}, err
}

func text(to []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(to, field, protowire.BytesType), text)
}

func bytes(to []byte, field protowire.Number, data []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, field, protowire.BytesType), data)
}

func number(to []byte, field protowire.Number, number uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, field, protowire.VarintType), number)
}

// each calls visit with each field of a message: with its number, or its bytes.
func each(message []byte, visit func(protowire.Number, uint64, []byte) error) error {
	for len(message) > 0 {
		field, kind, length := protowire.ConsumeTag(message)
		if length < 0 {
			return protowire.ParseError(length)
		}
		message = message[length:]
		number, data, used := uint64(0), []byte(nil), 0
		switch kind {
		case protowire.VarintType:
			number, used = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			data, used = protowire.ConsumeBytes(message)
		default:
			used = protowire.ConsumeFieldValue(field, kind, message)
		}
		if used < 0 {
			return protowire.ParseError(used)
		}
		if err := visit(field, number, data); err != nil {
			return err
		}
		message = message[used:]
	}
	return nil
}
