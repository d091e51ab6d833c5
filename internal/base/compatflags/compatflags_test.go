package compatflags

import (
	"slices"
	"testing"

	"github.com/spf13/pflag"
)

func TestAdd(t *testing.T) {
	for _, tc := range []struct {
		args []string
		err  bool
	}{
		{[]string{"--vmodule=a=4", "--logging-format=text"}, false},
		{[]string{"--logging-format=json"}, true},
		{[]string{"--log-text-split-stream"}, true},
		{[]string{"--log-text-split-stream=false", "--feature-gates=ContextualLogging=true"}, false},
		{[]string{"--emulation-forward-compatible", "--emulated-version=1.37"}, false},
		{[]string{"--emulated-version=1.36"}, true},
		{[]string{"--mine=3"}, false},
	} {
		f := pflag.NewFlagSet("x", pflag.ContinueOnError)
		mine := f.Int("mine", 0, "")
		Add(f, slices.Concat(Logging(), Metrics(), Versions(), LeaderElection(), Client(), []Flag{{Name: "mine", Only: []string{"4"}}})...)
		if err := f.Parse(tc.args); (err != nil) != tc.err {
			t.Errorf("%v: %v", tc.args, err)
		}
		if tc.args[0] == "--mine=3" && *mine != 3 {
			t.Error("an existing flag was replaced")
		}
	}
}
