package client_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hyperkube/internal/client"
)

// TestAwaitAPI checks that AwaitAPI reports in one line which checks have failed.
func TestAwaitAPI(t *testing.T) {
	answers := []string{
		"[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n",
		"[-]a failed: reason withheld\n[-]b failed: reason withheld\n[-]c failed: reason withheld\n[+]ping ok\n[-]d failed: reason withheld\n[-]e failed",
		"",
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if len(answers) == 0 {
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, answers[0])
		answers = answers[1:]
	}))
	defer server.Close()
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	if err := client.AwaitAPI(t.Context(), kube, func(err error) { said = append(said, err.Error()) }); err != nil {
		t.Fatal(err)
	}
	want := []string{"API server is not ready: etcd", "API server is not ready: a, b, c and 2 more"}
	if len(said) != 3 || !reflect.DeepEqual(said[:2], want) || said[2] == "" {
		t.Errorf("got %q, want %q", said, want)
	}
}
