package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// counter is the place in a body that next overwrites: in the last message, so that all before it stays equal.
const counter = "0000000000000000"

// body is one OpenAI chat completion request whose last message is new each time.
type body struct {
	before, after []byte
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// request has its fields in the order that many clients send: the model comes after the messages.
type request struct {
	Messages    []message `json:"messages"`
	Temperature float64   `json:"temperature"`
	Stream      bool      `json:"stream"`
	Model       string    `json:"model"`
}

// newBody builds a chat of exactly size bytes: a system prompt that all conversations share (a quarter of the text), then
// turns of the conversation's own, then a short question that carries the counter. The text is drawn from a fixed seed.
func newBody(size, conversation int) (*body, error) {
	question := message{"user", "Request " + counter + ": what would you change first, and why?"}
	chat := request{Messages: []message{question}, Temperature: 0.7, Model: "meta-llama/Llama-3.1-8B-Instruct"}
	room, err := encode(chat)
	if err != nil {
		return nil, err
	}
	text := size - len(room)
	if text < 1024 {
		return nil, fmt.Errorf("a body of %d bytes has no room for a conversation", size)
	}
	shared := rand.New(rand.NewPCG(1, 1))
	own := rand.New(rand.NewPCG(2, uint64(conversation)))
	turns := []message{{"system", prose(shared, text/4)}}
	for turn := range 6 {
		role := []string{"user", "assistant"}[turn%2]
		turns = append(turns, message{role, prose(own, text/10)})
	}
	chat.Messages = append(turns, question)
	whole, err := encode(chat)
	if err != nil {
		return nil, err
	}
	longest := len(turns) - 1
	chat.Messages[longest].Content += prose(own, size-len(whole))
	if whole, err = encode(chat); err != nil {
		return nil, err
	}
	before, after, found := strings.Cut(string(whole), counter)
	if len(whole) != size || !found {
		return nil, fmt.Errorf("the body has %d bytes instead of %d", len(whole), size)
	}
	return &body{[]byte(before), []byte(after)}, nil
}

// next appends the body with a counter no other request of any run has.
func (b *body) next(buffer []byte) []byte {
	buffer = append(buffer, b.before...)
	buffer = fmt.Appendf(buffer, "%016x", sequence.Add(1))
	return append(buffer, b.after...)
}

func encode(chat request) ([]byte, error) {
	return json.Marshal(chat)
}

// prose is length bytes of words: what a JSON reader meets in a prompt, hardly an escape in it.
func prose(draw *rand.Rand, length int) string {
	const letters = "etaoinshrdlucmfwypvbgkjqxz"
	text := make([]byte, 0, length+12)
	for len(text) < length {
		for range 2 + draw.IntN(9) {
			text = append(text, letters[min(draw.IntN(26), draw.IntN(26))])
		}
		text = append(text, ' ')
	}
	return string(text[:length])
}
