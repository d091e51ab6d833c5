package metricshistory

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
)

// Values are samples of a metric. An unknown sample is NaN, and null in JSON.
type Values []float32

// MarshalJSON implements json.Marshaler. Numbers have the five significant digits that a chart needs.
func (v Values) MarshalJSON() ([]byte, error) {
	out := make([]byte, 0, 2+8*len(v))
	out = append(out, '[')
	for i, f := range v {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendValue(out, f)
	}
	return append(out, ']'), nil
}

// appendValue appends f to out as a JSON number, or null if f is not finite.
func appendValue(out []byte, f float32) []byte {
	wide := float64(f)
	if math.IsNaN(wide) || math.IsInf(wide, 0) {
		return append(out, "null"...)
	}
	// Integers, such as counts and small sizes, are exact.
	if wide == math.Trunc(wide) && math.Abs(wide) < 1<<24 {
		return strconv.AppendInt(out, int64(wide), 10)
	}
	return strconv.AppendFloat(out, wide, 'g', 5, 32)
}

// UnmarshalJSON implements json.Unmarshaler. It returns an error if data is not an array of numbers and nulls.
func (v *Values) UnmarshalJSON(data []byte) error {
	data = bytes.TrimSpace(data)
	if bytes.Equal(data, []byte("null")) {
		*v = nil
		return nil
	}
	if len(data) < 2 || data[0] != '[' || data[len(data)-1] != ']' {
		return fmt.Errorf("parsing samples: %.20q is not an array", data)
	}
	out := Values{}
	for text := range bytes.SplitSeq(data[1:len(data)-1], []byte(",")) {
		text = bytes.TrimSpace(text)
		switch {
		case len(text) == 0 && len(out) == 0 && len(bytes.TrimSpace(data[1:len(data)-1])) == 0:
			continue
		case string(text) == "null":
			out = append(out, float32(math.NaN()))
			continue
		}
		f, err := strconv.ParseFloat(string(text), 32)
		if err != nil {
			return fmt.Errorf("parsing samples: %w", err)
		}
		out = append(out, float32(f))
	}
	*v = out
	return nil
}

// Last returns the newest sample, or NaN if there is none.
func (v Values) Last() float32 {
	if len(v) == 0 {
		return float32(math.NaN())
	}
	return v[len(v)-1]
}
