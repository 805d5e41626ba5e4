package control

import (
	"testing"
	"time"
)

func TestOverload(t *testing.T) {
	db := openEmpty(t)
	ctx := t.Context()
	for level := range 3 {
		if err := db.ReportOverload(ctx, "a", level, "command-latency"); err != nil {
			t.Fatal(err)
		}
	}
	reports, order, err := db.Overload(ctx, time.Minute)
	if err != nil || order != nil || len(reports) != 1 || reports[0].Level != 2 || reports[0].Silent > time.Minute {
		t.Fatalf("%+v, %+v, %v", reports, order, err)
	}
	if reports, _, err = db.Overload(ctx, 0); err != nil || len(reports) != 0 {
		t.Errorf("silent ones: %+v, %v", reports, err)
	}
	for _, level := range []int{4, 5} {
		if err := db.OrderOverload(ctx, level, "some", "ann", "drill"); err != nil {
			t.Fatal(err)
		}
	}
	if _, order, err = db.Overload(ctx, time.Minute); err != nil || order == nil || order.Level != 5 || order.Who != "ann" {
		t.Errorf("%+v, %v", order, err)
	}
	for _, want := range []bool{true, false} {
		if changed, err := db.FreeOverload(ctx, "ann", "over"); err != nil || changed != want {
			t.Errorf("freed: %v, %v", changed, err)
		}
	}
	entries, err := db.Entries(ctx, OverloadSubject, 10)
	if err != nil || len(entries) != 3 || entries[0].Action != "overload.freed" || entries[1].Reason != "drill" {
		t.Errorf("%+v, %v", entries, err)
	}
}
