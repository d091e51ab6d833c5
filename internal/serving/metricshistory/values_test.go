package metricshistory

import (
	"encoding/json"
	"math"
	"testing"
)

func TestValues(t *testing.T) {
	nan := float32(math.NaN())
	for want, values := range map[string]Values{
		`[]`:                         {},
		`[0,1,-3,16777215]`:          {0, 1, -3, 16777215},
		`[0.25,1.2346,1.5e+09,null]`: {0.25, 1.23456, 1.5e9, nan},
		`[null,null]`:                {nan, float32(math.Inf(1))},
	} {
		got, err := json.Marshal(values)
		if err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
		var read Values
		if err := json.Unmarshal(got, &read); err != nil || len(read) != len(values) {
			t.Fatalf("%s: got %v, %v", got, read, err)
		}
		if again, err := json.Marshal(read); err != nil || string(again) != want {
			t.Errorf("read again: got %s, %v, want %s", again, err, want)
		}
	}
	for _, bad := range []string{`{}`, `[1,"a"]`, `[[1]]`, `7`} {
		if err := json.Unmarshal([]byte(bad), &Values{}); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
	if v := (Values{}).Last(); v == v || (Values{1, 2}).Last() != 2 {
		t.Error("the last sample is wrong")
	}
}
