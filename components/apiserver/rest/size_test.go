package rest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestMinimumSize checks that the bound never exceeds the size in JSON, and is close to it for
// objects of many small fields.
func TestMinimumSize(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		v := randomJSON(r, 4)
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if got := minimumSize(v, false); got > len(data) {
			t.Fatalf("%d for %s of %d bytes", got, data, len(data))
		}
		// An entry for each key of a map is at least as large as the key.
		if got, plain := minimumSize(v, true), minimumSize(v, false); got < plain {
			t.Fatalf("%d with managed fields, %d without for %s", got, plain, data)
		}
	}
	many := map[string]any{}
	for i := range 1000 {
		many[fmt.Sprintf("k%04d", i)] = "v"
	}
	data, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	if got := minimumSize(many, false); got < len(data)*9/10 {
		t.Errorf("%d for an object of %d bytes", got, len(data))
	}
	fields := len(`"f:k0000":{}`) * len(many)
	if got := minimumSize(many, true) - minimumSize(many, false); got != fields {
		t.Errorf("%d bytes of managed fields, want %d", got, fields)
	}
}

// randomJSON returns a random JSON value with at most depth levels of lists and maps.
func randomJSON(r *rand.Rand, depth int) any {
	kinds := 7
	if depth == 0 {
		kinds = 5
	}
	switch r.IntN(kinds) {
	case 0:
		return nil
	case 1:
		return r.IntN(2) == 0
	case 2:
		return r.Int64() - r.Int64()
	case 3:
		return r.NormFloat64()
	case 4:
		return string([]rune("ab<\"\u2028\nä")[:r.IntN(8)])
	case 5:
		var list []any
		for range r.IntN(4) {
			list = append(list, randomJSON(r, depth-1))
		}
		return list
	default:
		m := map[string]any{}
		for range r.IntN(4) {
			m[fmt.Sprint("k", r.IntN(100))] = randomJSON(r, depth-1)
		}
		return m
	}
}
