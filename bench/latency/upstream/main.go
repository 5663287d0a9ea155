// Command upstream stands for the engines: it reads each body and answers at once, naming the endpoint that served.
package main

import (
	"flag"
	"io"
	"log"
	"net/http"
	"strings"
)

const answer = `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"}}]}`

func engine(address string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		w.Header().Set("content-type", "application/json")
		w.Header().Set("x-served-by", address)
		_, _ = io.WriteString(w, answer)
	}
}

func main() {
	listen := flag.String("listen", "", "addresses to serve on, ip:port, comma-separated")
	flag.Parse()
	failed := make(chan error)
	for _, address := range strings.Split(*listen, ",") {
		go func() { failed <- http.ListenAndServe(address, engine(address)) }()
	}
	log.Fatal(<-failed)
}
