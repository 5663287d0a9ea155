package main

import (
	"math"
	"time"
)

// Buckets grow by 1 %, from 1 us to about 20 s: a quantile is within half a per cent of the truth.
const (
	growth  = 1.01
	buckets = 1700
)

// histogram counts latencies in buckets of equal relative width.
type histogram struct {
	counts [buckets]int
	total  int
	sumUs  float64
}

func (h *histogram) add(took time.Duration) {
	us := float64(took) / float64(time.Microsecond)
	bucket := int(math.Log(math.Max(us, 1)) / math.Log(growth))
	h.counts[min(bucket, buckets-1)]++
	h.total++
	h.sumUs += us
}

func (h *histogram) merge(other *histogram) {
	for i, count := range other.counts {
		h.counts[i] += count
	}
	h.total += other.total
	h.sumUs += other.sumUs
}

// mean is in microseconds; 0 without any latency.
func (h *histogram) mean() float64 {
	if h.total == 0 {
		return 0
	}
	return h.sumUs / float64(h.total)
}

// quantile is in microseconds, the middle of the bucket that holds it; 0 without any latency.
func (h *histogram) quantile(q float64) float64 {
	rank := int(math.Ceil(q * float64(h.total)))
	seen := 0
	for i, count := range h.counts {
		seen += count
		if count > 0 && seen >= rank {
			return math.Pow(growth, float64(i)+0.5)
		}
	}
	return 0
}
