package store

import (
	"fmt"
	"testing"

	"hyperkube/components/logging/record"
)

// BenchmarkSearch searches 100 MB of logs of 200 pods.
func BenchmarkSearch(b *testing.B) {
	s := open(b, Config{Dir: b.TempDir()})
	defer s.Close()
	var sources []*record.Source
	for i := range 200 {
		sources = append(sources, &record.Source{Namespace: fmt.Sprint("ns", i%10), Pod: fmt.Sprintf("web-%d", i), Container: "web", Labels: map[string]string{"app": "web"}})
	}
	size, i := 0, 0
	for ; size < 100<<20; i++ {
		text := fmt.Sprintf(`level=info msg="request served" method=GET path=/api/v1/items/%d status=200 duration=%dus user=%x`, i*7919%100000, i*31%9973, i*2654435761)
		if i%100000 == 5 {
			text += " error=timeout"
		}
		s.Append(sources[i%len(sources)], record.Record{Time: int64(i) * 1000, Stream: record.Stdout, Text: []byte(text)})
		size += len(text)
		if n, _ := s.Pending(); n >= BlockBytes {
			if err := s.Flush(); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := s.Flush(); err != nil {
		b.Fatal(err)
	}
	b.Logf("%d records of %d MB use %d MB", i, size>>20, s.Stats().Size>>20)
	for _, expr := range []string{"error=timeout", `error=\w+`, `(?i)ERROR=TIMEOUT`, `duration=9972us.*error`} {
		p, err := NewPattern(expr)
		if err != nil {
			b.Fatal(err)
		}
		for name, q := range map[string]Query{"all": {Text: p}, "namespace": {Text: p, Namespace: "ns5"}} {
			b.Run(name+"/"+expr, func(b *testing.B) {
				for b.Loop() {
					if _, err := s.Search(b.Context(), q, func(Entry) bool { return true }); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
