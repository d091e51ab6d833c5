package main

import (
	"slices"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	for _, tc := range []struct {
		names, err string
		want       []string
	}{
		{names: ""},
		{names: "get-pod,watch-event", want: []string{"get-pod", "watch-event"}},
		{names: "get-pod,get-pods", err: `unknown operation "get-pods": valid are apply-configmap, apply-pod, `},
		{names: "get-pod,", err: `unknown operation ""`},
	} {
		a := &apiBench{}
		switch err := a.choose(tc.names); {
		case tc.err != "":
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%q: %v, want %s", tc.names, err, tc.err)
			}
		case err != nil || !slices.Equal(a.only, tc.want):
			t.Errorf("%q: %q, %v", tc.names, a.only, err)
		}
	}
}
