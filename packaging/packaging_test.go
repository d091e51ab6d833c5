package packaging

import (
	"strings"
	"testing"
)

func TestUnit(t *testing.T) {
	if got := Unit(program); got != unit {
		t.Errorf("the unit of the packages differs:\n%s", got)
	}
	const path = "/opt/bin/hyperkube"
	got := Unit(path)
	if !strings.Contains(got, "\nExecStart="+path+" up --foreground ") || strings.Contains(got, program) {
		t.Errorf("the unit does not start %s:\n%s", path, got)
	}
	// Pods must survive a restart of the service.
	for _, line := range []string{"Type=notify", "KillMode=process", "Delegate=yes"} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("no line %s:\n%s", line, got)
		}
	}
}
