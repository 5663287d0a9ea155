// Command load drives one target with chat completions over keep-alive HTTP/1.1 connections, each sending its next
// request when the last one is answered, and prints what it measured as one line of JSON.
//
// It speaks HTTP/1.1 over a bare socket: the less the generator costs, the more of two cores is left to what is measured.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// conversations is how many different chats are replayed in turn: requests of one share all but their last message.
const conversations = 16

var sequence atomic.Uint64

// Result is what one connection, or all of them together, measured.
type Result struct {
	Requests int            `json:"requests"` // answered with 200, warm-up included
	Measured int            `json:"measured"` // of these, the ones in the latencies
	Errors   int            `json:"errors"`
	Error    string         `json:"error,omitempty"` // the first one, in words
	Served   map[string]int `json:"served"`          // requests per endpoint that answered
	Seconds  float64        `json:"seconds"`
	MeanUs   float64        `json:"mean_us"`
	P50Us    float64        `json:"p50_us"`
	P90Us    float64        `json:"p90_us"`
	P99Us    float64        `json:"p99_us"`

	latencies histogram
}

func (r *Result) add(other *Result) {
	r.Requests += other.Requests
	r.Measured += other.Measured
	r.Errors += other.Errors
	if r.Error == "" {
		r.Error = other.Error
	}
	for address, count := range other.Served {
		r.Served[address] += count
	}
	r.latencies.merge(&other.latencies)
}

func main() {
	target := flag.String("target", "", "address to send to, ip:port")
	connections := flag.Int("connections", 1, "connections, one request at a time on each")
	size := flag.Int("size", 8192, "bytes per request body")
	seconds := flag.Float64("seconds", 2, "seconds to run, warm-up included")
	limit := flag.Int("requests", 1_000_000, "most requests to send over all connections")
	warmup := flag.Float64("warmup", 0.1, "part of the time, from the start, that is left out of the latencies")
	flag.Parse()

	bodies := make([]*body, conversations)
	for i := range bodies {
		chat, err := newBody(*size, i)
		if err != nil {
			log.Fatal(err)
		}
		bodies[i] = chat
	}
	sequence.Store(uint64(time.Now().UnixNano()))
	total := Result{Served: map[string]int{}}
	results := make([]Result, *connections)
	begin := time.Now()
	duration := time.Duration(*seconds * float64(time.Second))
	warm, deadline := begin.Add(time.Duration(*warmup*float64(duration))), begin.Add(duration)
	var running sync.WaitGroup
	for i := range results {
		running.Add(1)
		go func() {
			defer running.Done()
			results[i] = drive(*target, bodies, i, *limit / *connections, warm, deadline)
		}()
	}
	running.Wait()
	total.Seconds = time.Since(begin).Seconds()
	for i := range results {
		total.add(&results[i])
	}
	total.MeanUs = total.latencies.mean()
	total.P50Us = total.latencies.quantile(0.50)
	total.P90Us = total.latencies.quantile(0.90)
	total.P99Us = total.latencies.quantile(0.99)
	if err := json.NewEncoder(os.Stdout).Encode(total); err != nil {
		log.Fatal(err)
	}
}

// drive sends requests on one connection until the deadline or the limit, and counts the latencies of those sent after
// warm. A failed connection is opened again.
func drive(target string, bodies []*body, first, limit int, warm, deadline time.Time) Result {
	result := Result{Served: map[string]int{}}
	fail := func(err error) {
		result.Errors++
		if result.Error == "" {
			result.Error = err.Error()
		}
		time.Sleep(10 * time.Millisecond)
	}
	var conn net.Conn
	var reader *bufio.Reader
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	var head, payload []byte
	for n := 0; n < limit; n++ {
		begin := time.Now()
		if begin.After(deadline) {
			break
		}
		if conn == nil {
			opened, err := net.DialTimeout("tcp", target, time.Second)
			if err != nil {
				fail(err)
				continue
			}
			conn, reader = opened, bufio.NewReader(opened)
		}
		payload = bodies[(first+n)%len(bodies)].next(payload[:0])
		head = fmt.Appendf(head[:0], "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nUser-Agent: bench\r\nAccept: */*\r\n"+
			"Authorization: Bearer none\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(payload))
		served, took, err := exchange(conn, reader, head, payload)
		if err != nil {
			fail(err)
			_ = conn.Close()
			conn = nil
			continue
		}
		result.Requests++
		result.Served[served]++
		if begin.After(warm) {
			result.Measured++
			result.latencies.add(took)
		}
	}
	return result
}

// exchange sends one request and reads its reply to the end; returns the endpoint that served it and how long it took.
func exchange(conn net.Conn, reader *bufio.Reader, head, payload []byte) (string, time.Duration, error) {
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", 0, err
	}
	begin := time.Now()
	if _, err := (&net.Buffers{head, payload}).WriteTo(conn); err != nil {
		return "", 0, err
	}
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return "", 0, err
	}
	defer response.Body.Close()
	var reply bytes.Buffer
	if _, err := io.Copy(&reply, response.Body); err != nil {
		return "", 0, err
	}
	took := time.Since(begin)
	if response.StatusCode != http.StatusOK {
		return "", 0, fmt.Errorf("status %d: %.200s", response.StatusCode, reply.String())
	}
	return response.Header.Get("x-served-by"), took, nil
}
