package compose_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/credentials/tokens"
	"hyperkube/internal/testing/testwait"
)

// TestTokenTracking checks that the ConfigMap is created, and restored after changes.
func TestTokenTracking(t *testing.T) {
	admin, err := start(t).server.Clients("test", "admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	api := admin.Kube.CoreV1().ConfigMaps("kube-system")
	good := func() error {
		cm, err := api.Get(t.Context(), tokens.TrackingName, metav1.GetOptions{})
		if err == nil {
			_, err = time.Parse(tokens.Day, cm.Data[tokens.TrackingKey])
		}
		return err
	}
	wait := func(what string) {
		t.Helper()
		testwait.Succeed(t, "the day to be "+what, good)
	}
	wait("written")
	cm, err := api.Get(t.Context(), tokens.TrackingName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm.Data[tokens.TrackingKey] = "yesterday"
	if _, err := api.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("restored")
}
