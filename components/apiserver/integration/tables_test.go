package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/apiserver"
)

// TestTableOrder checks that tables of flow schemas are in matching order, while lists are sorted
// by name.
func TestTableOrder(t *testing.T) {
	const path = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
	a := newAPI(t, startServer(t, apiserver.Config{}))
	for name, precedence := range map[string]int{"a": 30, "b": 20, "c": 20, "d": 10} {
		body := fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"matchingPrecedence":%d,"priorityLevelConfiguration":{"name":"exempt"}}}`, name, precedence)
		if r := a.do("POST", path, body, jsn); r.code != 201 {
			t.Fatalf("%+v", r)
		}
	}
	r := a.do("GET", path, "", tabl)
	var table metav1.Table
	if err := json.Unmarshal([]byte(r.body), &table); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	var names []string
	for _, row := range table.Rows {
		names = append(names, row.Cells[0].(string))
	}
	if got := strings.Join(names, " "); got != "d b c a" {
		t.Errorf("rows: %s", got)
	}
	r = a.do("GET", path, "")
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal([]byte(r.body), &list); err != nil || len(list.Items) != 4 || list.Items[0].Name != "a" {
		t.Errorf("list: %v, %+v", err, r)
	}
}

// TestColumnDescriptions checks that column descriptions are those of the fields in the current
// version, not those of former versions.
func TestColumnDescriptions(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{}))
	for resource, want := range map[string]string{
		"controllerrevisions": "Revision indicates the revision of the state represented by Data.",
		"daemonsets":          "with a Ready Condition.",
		"deployments":         "It must match the pod template's labels.",
		"replicasets":         "It must match the pod template's labels.",
	} {
		if r := a.do("GET", "/apis/apps/v1/"+resource, "", tabl); r.code != 200 || !strings.Contains(r.body, want) {
			t.Errorf("%s: no %q in %+v", resource, want, r)
		}
	}
}
