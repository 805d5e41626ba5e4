package control

import (
	"context"
	"testing"
)

func TestExclusively(t *testing.T) {
	db := openEmpty(t)
	ran, err := db.Exclusively(t.Context(), "healing", func(ctx context.Context) error {
		again, err := db.Exclusively(ctx, "healing", func(context.Context) error { t.Error("ran twice at a time"); return nil })
		if again {
			t.Error("said that it ran")
		}
		return err
	})
	if !ran || err != nil {
		t.Fatalf("%v, %v", ran, err)
	}
	if ran, err = db.Exclusively(t.Context(), "healing", func(context.Context) error { return nil }); !ran || err != nil {
		t.Fatalf("afterwards: %v, %v", ran, err)
	}
}
